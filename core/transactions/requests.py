"""The random name of one attempt to commit."""

from __future__ import annotations

import secrets
import time
from uuid import UUID

_VERSION_AND_VARIANT = (0x7 << 76) | (0x2 << 62)
_RANDOM = ((1 << 12) - 1) << 64 | ((1 << 62) - 1)


def new_request() -> UUID:
    """Draw a name that nobody else draws, larger than most before it.

    Outcomes are then added at the right edge of their index, which keeps a commit as cheap after 10⁷ of them.

    Source: RFC 9562, UUID version 7. Nothing depends on the clock in it.
    """
    milliseconds = time.time_ns() // 1_000_000
    return UUID(int=(milliseconds & ((1 << 48) - 1)) << 80 | _VERSION_AND_VARIANT | secrets.randbits(128) & _RANDOM)
