"""Exceptions that handlers of signals raise, as alarms of users and time limits of schedulers do.

They strike anywhere, also inside a driver, which may take them for an error of its connection.
"""

from __future__ import annotations

import signal
from traceback import walk_tb


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Find, among an error and those that it came from, the one that a handler of a signal raised."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {code for handler in handlers if (code := getattr(handler, "__code__", None)) is not None}
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if any(frame.f_code in codes for frame, _ in walk_tb(one.__traceback__)):
            return one
        found += [one.__context__, one.__cause__]
    return None
