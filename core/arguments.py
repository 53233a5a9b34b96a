"""Reads arguments that are values, text rendered by a template, or results of other tasks.

A template renders None as text, and a list or mapping as JSON or in Python's notation. With
``render_template_as_native_obj`` it renders ``"2024"`` as a number. Each function accepts all of these. None, and text
that stands for None, selects the default.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from export_queue.core.errors import InvalidArgument

_NOTHING = frozenset(("", "None", "null"))
"""Text that templates render for None."""
_NATIVE = "a native template makes a value of text that looks like one: write {{ … | tojson }}"


def given(value: Any) -> Any:
    """Return an argument, or None if a template rendered None."""
    return None if isinstance(value, str) and value.strip() in _NOTHING else value


def decoded(value: Any) -> Any:
    """Decode text in JSON or Python's notation; other text is returned unchanged."""
    value = given(value)
    if not isinstance(value, str):
        return value
    for decode in (json.loads, ast.literal_eval):
        try:
            return decode(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return value


def text(value: Any, *, what: str, default: str | None = None) -> str | None:
    """Read text, or its JSON. A whole number is text that a template rendered as a number."""
    value = given(value)
    if value is None:
        return default
    if isinstance(value, str) or type(value) is int:
        return str(_unquoted(value))
    raise InvalidArgument(f"{what}: expected text, found {value!r}", hint=_NATIVE)


def required_text(value: Any, *, what: str) -> str:
    """Read text that has no default."""
    found = text(value, what=what)
    if found is None:
        raise InvalidArgument(f"{what}: expected text, found {value!r}")
    return found


def names(value: Any, *, what: str) -> list[str] | None:
    """Read a list of text, or its JSON, without its None."""
    value = decoded(value)
    if value is None:
        return None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise InvalidArgument(f"{what}: expected a list of texts, found {value!r}")
    return [found for one in value if (found := text(one, what=what)) is not None]


def columns(value: Any, *, what: str) -> list[str] | None:
    """Read the name of a column, or a list of names."""
    found = decoded(value)
    return names(found if found is None or _is_list(found) else [text(value, what=what)], what=what)


def required_columns(value: Any, *, what: str) -> list[str]:
    """Read the name of a column, or a list of names; at least one."""
    found = columns(value, what=what)
    if not found:
        raise InvalidArgument(f"{what}: expected the name of a column, found {value!r}")
    return found


def mapping(value: Any, *, what: str) -> dict[str, Any] | None:
    """Read a mapping of names to values, or its JSON. The text ``None`` stands for None."""
    found = decoded(value)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        # The value may hold a secret, so it is not shown.
        raise InvalidArgument(f"{what}: expected names and values, as a mapping or JSON, found {_described(found)}")
    return {str(name): None if one == "None" else one for name, one in found.items()}


def parse_ranges(value: Any, *, what: str = "ranges") -> list[list[int]] | None:
    """Read ranges of buckets: pairs of whole numbers, one pair, or either as JSON text.

    A third number is the layout, if it is not the first layout of the queue.

    :param value: such as ``[[0, 101], [202, 303]]``, ``[0, 101]`` or ``"[[0, 101]]"``; None for all.
    :returns: a list of ranges, or None for all.
    """
    value = decoded(value)
    if value is None:
        return None
    if (one := _range(value)) is not None:
        return [one]
    found = [_range(decoded(part)) for part in value] if _is_list(value) else [None]
    if None in found:
        raise InvalidArgument(
            f"{what}: expected pairs of whole numbers such as [[0, 101], [101, 202]], found {value!r}"
        )
    return [one for one in found if one is not None]


def check_text(value: object, *, what: str, rule: str = "") -> None:
    """Refuse a name that is not text, such as the number that a native template renders for ``"123"``.

    :param rule: describes the allowed text.
    """
    if not isinstance(value, str):
        hint = _NATIVE if type(value) in (int, float) else None
        found = f"found {type(value).__name__} {value!r:.100}"
        raise InvalidArgument(f"{what}: expected text{rule and f' of {rule}'}, {found}", hint=hint)


def whole_number(value: Any, *, what: str, least: int = 0) -> int:
    """Read a whole number, which may be text that a template rendered."""
    found = decoded(_unquoted(value))
    try:
        number = int(found)
    except (TypeError, ValueError, OverflowError):  # OverflowError: infinity
        number = least - 1
    if number < least or isinstance(found, bool) or (isinstance(found, float) and found != number):
        raise InvalidArgument(f"{what}: expected a whole number from {least}, found {value!r}")
    return number


def number_or_part(value: Any, *, what: str) -> float:
    """Read a number: a whole number, or a part from 0 to 1."""
    found = decoded(_unquoted(value))
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InvalidArgument(f"{what}: expected a part from 0 to 1 or a whole number, found {value!r}")
    return found


def choice(value: Any, *, what: str, allowed: Sequence[str]) -> str:
    """Read one of some texts."""
    if value not in allowed:
        raise InvalidArgument(f"{what}: expected one of {', '.join(allowed)}, found {value!r}")
    return str(value)


def seconds(value: Any, *, what: str, may_be_zero: bool = False) -> float:
    """Read a finite time in seconds, which may be text that a template rendered."""
    try:
        found = value.total_seconds() if isinstance(value, timedelta) else float(_unquoted(value))
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found) or found < 0 or (found == 0 and not may_be_zero):
        raise InvalidArgument(f"{what}: expected seconds {'from' if may_be_zero else 'above'} 0, found {value!r}")
    return found


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(value: Any, *, what: str) -> float:
    """Read a time in seconds that may be text with a unit, such as ``7d``, ``12h``, ``30m`` or ``45s``."""
    text = _unquoted(value)
    if isinstance(text, str) and text[-1:] in _UNITS:
        return seconds(text[:-1], what=what, may_be_zero=True) * _UNITS[text[-1]]
    return seconds(text, what=what, may_be_zero=True)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _range(value: Any) -> list[int] | None:
    if not _is_list(value) or len(value) not in (2, 3):
        return None
    try:
        return [whole_number(one, what="ranges") for one in value]
    except InvalidArgument:
        return None


def _described(value: Any) -> str:
    try:
        json.loads(value)
    except TypeError:
        pass
    except ValueError as error:
        return f"text that is not valid JSON: {error}"
    return type(value).__name__


def _unquoted(value: Any) -> Any:
    """Decode text that is a JSON string; return anything else unchanged."""
    if isinstance(value, str) and value[:1] == value[-1:] == '"' and len(value) > 1:
        try:
            return str(json.loads(value))
        except ValueError:
            pass
    return value
