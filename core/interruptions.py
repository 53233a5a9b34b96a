"""Exceptions raised by signal handlers, such as users' alarms and time limits of schedulers.

They can occur anywhere, also inside a driver, which may treat them as an error of its connection.
"""

from __future__ import annotations

import signal
from traceback import walk_tb


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return the exception that a signal handler raised, among an error and its causes; None if there is none."""
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
