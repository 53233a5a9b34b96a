"""Reads arguments as they arrive: as values, as texts that a template rendered, or from another task."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from export_queue.core.errors import InvalidArgument


def parse_ranges(value: Any) -> list[list[int]] | None:
    """Read ranges of buckets: pairs of whole numbers, one such pair, or either as JSON text.

    A third number is the layout of the queue, where that is not its first one.

    :param value: such as ``[[0, 101], [202, 303]]``, ``[0, 101]`` or ``"[[0, 101]]"``; None for all.
    :returns: a list of ranges, or None for all.
    :raises InvalidArgument: it is something else.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("", "none", "null"):
            return None
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise _not_ranges(text) from None
    if value is None:
        return None
    if not isinstance(value, Sequence):
        raise _not_ranges(value)
    if _is_range(value):
        return [list(value)]
    if not all(map(_is_range, value)):
        raise _not_ranges(value)
    return [list(one) for one in value]


def whole_number(value: Any, *, what: str, least: int = 0) -> int:
    """Read a whole number that may have been rendered to text."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):  # the last of infinity
        number = least - 1
    if number < least or (isinstance(value, float) and value != number):
        raise InvalidArgument(f"{what}: expected a whole number from {least}, found {value!r}")
    return number


def number(value: Any, *, what: str) -> float:
    """Read a number that may have been rendered to text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}: expected a number, found {value!r}") from None


def seconds(value: Any, *, what: str, may_be_zero: bool = False) -> float:
    """Read a time in seconds, which has an end and may have been rendered to text."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found) or found < 0 or (found == 0 and not may_be_zero):
        raise InvalidArgument(f"{what}: expected seconds {'from' if may_be_zero else 'above'} 0, found {value!r}")
    return found


def _is_range(item: Any) -> bool:
    is_sequence = isinstance(item, Sequence) and not isinstance(item, str | bytes)
    return is_sequence and len(item) in (2, 3) and all(map(_is_whole, item))


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _not_ranges(value: Any) -> InvalidArgument:
    return InvalidArgument(f"ranges: expected pairs of whole numbers such as [[0, 101], [101, 202]], found {value!r}")
