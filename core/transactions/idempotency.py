"""What may be an idempotency key, and what may be stored under it; no I/O."""

from __future__ import annotations

import reprlib
from typing import Any

import orjson

from export_queue.core.errors import InvalidArgument

MAX_IDEMPOTENCY_KEY_BYTES = 1024


def check_idempotency_key(key: str) -> None:
    """Refuse what every database could not store.

    :raises InvalidArgument: it is no text, empty, too long, or holds a NUL or half a character.
    """
    try:
        size = len(key.encode())
    except (AttributeError, UnicodeEncodeError):
        size = 0
    if not 0 < size <= MAX_IDEMPOTENCY_KEY_BYTES or "\x00" in key:
        raise InvalidArgument(
            f"idempotency key: expected text of 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes without NUL, "
            f"found {reprlib.repr(key)}"
        )


def as_json(result: Any, key: str) -> str:
    """Write the result of a unit of work as JSON.

    :raises InvalidArgument: a later call, which returns what is stored, would return another value.
    """
    try:
        text = orjson.dumps(result)
        back = orjson.loads(text)
    except (TypeError, ValueError) as error:
        raise _no_json(key, str(error)) from error
    if back != result:
        raise _no_json(key, f"{reprlib.repr(result)} would come back as {reprlib.repr(back)}")
    return text.decode()


def _no_json(key: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"idempotency key {key!r}: its result must be a JSON value, which is stored with the commit; {reason}",
        hint="return None, booleans, numbers, text, or lists and dicts (with keys of text) of these",
    )
