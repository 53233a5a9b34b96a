"""Reads arguments as they arrive: as values, as rendered text, or from another task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from export_queue.core.errors import InvalidArgument


def parse_ranges(value: Any) -> list[list[int]] | None:
    """Read ranges of buckets: pairs of whole numbers, one such pair, or either as JSON text.

    :param value: such as ``[[0, 101], [202, 303]]``, ``[0, 101]`` or ``"[[0, 101]]"``; None for all.
    :returns: a list of pairs, or None for all.
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
    pairs = [value] if len(value) == 2 and all(_is_whole(item) for item in value) else value
    ranges: list[list[int]] = []
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2 or not all(map(_is_whole, pair)):
            raise _not_ranges(value)
        ranges.append([pair[0], pair[1]])
    return ranges


def whole_number(value: Any, *, what: str, least: int = 0) -> int:
    """Read a whole number that may have been rendered to text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least or (isinstance(value, float) and value != number):
        raise InvalidArgument(f"{what}: expected a whole number from {least}, found {value!r}")
    return number


def one_of(value: Any, allowed: Iterable[str], *, what: str) -> Any:
    """Read a choice."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise InvalidArgument(f"{what}: expected one of {', '.join(allowed)}, found {value!r}")
    return value


def join_ranges(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    """Sort ranges and join neighbours."""
    joined: list[list[int]] = []
    for first, end in sorted((pair[0], pair[1]) for pair in ranges):
        if joined and joined[-1][1] == first:
            joined[-1][1] = end
        else:
            joined.append([first, end])
    return joined


def _is_whole(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _not_ranges(value: Any) -> InvalidArgument:
    return InvalidArgument(f"ranges: expected pairs of whole numbers such as [[0, 101], [101, 202]], found {value!r}")
