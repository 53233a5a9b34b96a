"""Encodes values of users as JSON without loss, or raises an error that says which part is not JSON and what to do.

``docs/values.md`` lists the types. Types of numpy and pandas are recognized by name, so that they are never imported.
A value of a subclass is read with the methods of its base class, not with its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import orjson

_WHOLE = range(-(1 << 63), 1 << 64)
"""Whole numbers that orjson accepts."""
_LARGEST = Decimal("1.7976931348623157E+308")
"""The largest number that readers of JSON can hold as a double."""
_LARGEST_WHOLE = int(_LARGEST)
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
"""orjson would accept times without a zone, and leave out the fields of a dataclass that begin with an underscore. If a
dataclass is also a dict, it would leave out all fields."""
_VALUES = (str, bytes, int, float, dict, list, tuple, set, Decimal, date, time, UUID)
"""A dataclass that is also one of these types is ambiguous."""
_DEEPEST = 254


@dataclass(frozen=True, slots=True)
class Misfit:
    """A part of a value that is not JSON."""

    path: str
    """Path of keys and positions, such as ``lines[2].price``; empty for the value itself."""
    found: str
    """The kind of the part, never its content."""
    remedy: str

    def __str__(self) -> str:
        return f"{f'field {self.path}' if self.path else 'the value'} {self.found}"


class NotJson(ValueError):
    """A value is not JSON; ``misfit`` describes the part."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(str(misfit))
        self.misfit = misfit


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON.

    :raises NotJson: a part of it is not JSON, such as NaN and Infinity, which many encoders turn into null.
    """
    try:
        encoded = orjson.dumps(value, _plain, _OPTIONS)
    except TypeError:  # perhaps only because of whole numbers of more than 64 bits
        return orjson.dumps(_spelled_out(value, ()), _plain, _OPTIONS)
    if b"null" in encoded and _lost(value):  # without a null, nothing can have been lost
        _spelled_out(value, ())  # raises an error that names the part
    return encoded


class _Refused(TypeError):
    """A part of a value that is not JSON."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.found, self.remedy = found, remedy


_PLAIN = "convert it to text, a number, a list or a dict"
_NO_NUMBER = "send None or text in its place"
_HALF = "repair the text: text.encode('utf-8', 'replace').decode()"
_ZONE = "say which zone it is of: value.replace(tzinfo=UTC), or value.astimezone() for this machine's"
_NO_ZONE = "send a datetime with a zone, or text"
_BASE64 = (
    "decode it where it is text: value.decode(); else base64.b64encode(value).decode(), or the codec 'bytes' for the "
    "whole value"
)
_REMEDIES = {
    "builtins.bytes": _BASE64,
    "builtins.bytearray": _BASE64,
    "builtins.memoryview": _BASE64,
    "numpy.bytes_": _BASE64,
    "builtins.set": "send a list: sorted(value)",
    "builtins.frozenset": "send a list: sorted(value)",
    "datetime.timedelta": "send its seconds: value.total_seconds()",
    "numpy.timedelta64": "send its seconds: value / numpy.timedelta64(1, 's')",
    "numpy.ndarray": "send a list: value.tolist()",
    "numpy.longdouble": "send the nearest double: float(value)",
}


def _plain(value: Any) -> Any:
    """Return a replacement that orjson can encode for a value that it cannot."""
    kind: Any = type(value)
    convert = _CONVERSIONS.get(kind)
    if convert is None:
        convert = _conversion(kind)
    return convert(value)


def _decimal(value: Decimal) -> orjson.Fragment:
    if not Decimal.is_finite(value):
        raise _Refused(f"is {Decimal.__str__(value)}, which JSON has no number for", _NO_NUMBER)
    if Decimal.copy_abs(value) > _LARGEST:
        raise _too_large()
    return orjson.Fragment(Decimal.__str__(value))


def _too_large() -> _Refused:
    return _Refused(f"is a number beyond {_LARGEST:.1E}, which readers of JSON cannot hold", "send it as text: str(…)")


def _float(value: float) -> float:
    number = float.__float__(value)
    if not math.isfinite(number):
        raise _Refused(f"is {number}, which JSON has no number for", _NO_NUMBER)
    return number


def _datetime(value: datetime) -> str | orjson.Fragment:
    if value.tzinfo is UTC and type(value) is datetime:
        return orjson.Fragment(orjson.dumps(value))  # in a quarter of the time of isoformat
    return _moment(datetime, value)


def _moment(kind: Any, value: datetime | time) -> str:
    text: str = kind.isoformat(value)
    if text[-6] not in "+-" and kind.utcoffset(value) is None:  # fast path: most offsets are visible in the text
        raise _Refused(f"is a {type(value).__name__} without a zone", _ZONE if isinstance(value, date) else _NO_ZONE)
    return text


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    if isinstance(value, _VALUES):
        other = next(known for known in _VALUES if isinstance(value, known)).__name__
        raise _Refused(f"is a dataclass and of type {other} at once", "send either its fields or its content: a dict")
    try:
        return {name: getattr(value, name) for name in _field_names(kind)}
    except AttributeError as error:
        raise _Refused(f"has no {error.name}, which its class declares", "set the field") from None


def _numpy_scalar(value: Any) -> Any:
    plain = value.item()
    if type(plain) is float:
        return _float(plain)
    return plain if type(plain) in (int, bool) else _refuse(value)


def _missing(value: Any) -> Any:
    raise _Refused(f"is {value}, which JSON has no value for", "send None in its place")


def _naive(value: Any) -> Any:
    raise _Refused(f"is a {type(value).__name__} without a zone", _NO_ZONE)


def _refuse(value: Any) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise _Refused(f"is of type {name.removeprefix('builtins.')}", _REMEDIES.get(name, _PLAIN))


_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    Decimal: _decimal,
    datetime: _datetime,
    date: date.isoformat,
    time: partial(_moment, time),
    float: _float,
    str: str.__str__,
    int: int.__index__,
    dict: dict.copy,
    list: list.copy,
}


@lru_cache(maxsize=1024)
def _conversion(kind: type) -> Callable[[Any], Any]:
    """Return the conversion for a type: a subclass, a dataclass, or a type of numpy or pandas."""
    if is_dataclass(kind):
        return _fields
    known = {(one.__module__.partition(".")[0], one.__name__): one for one in kind.__mro__}
    if ("pandas", "NaTType") in known or ("pandas", "NAType") in known:
        return _missing
    if timestamp := known.get(("pandas", "Timestamp")):  # has nanoseconds
        return partial(_moment, timestamp)
    for base, convert in _CONVERSIONS.items():
        if issubclass(kind, base):
            return convert
    if ("numpy", "timedelta64") in known or ("numpy", "generic") not in known:
        return _refuse
    return _naive if ("numpy", "datetime64") in known else _numpy_scalar


@lru_cache(maxsize=1024)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _lost(value: Any) -> bool:
    """Return whether orjson has turned a number into null."""
    if isinstance(value, Enum):
        return _lost(value.value)
    if isinstance(value, float):
        return not math.isfinite(value)
    if value is None or isinstance(value, str | int):
        return False
    if isinstance(value, dict):
        return any(map(_lost, dict.values(value)))
    if isinstance(value, list):
        return any(map(_lost, list.__iter__(value)))
    if type(value) is tuple:
        return any(map(_lost, value))
    return _is_record(value) and any(map(_lost, _fields(value).values()))


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _spelled_out(value: Any, path: tuple[str, ...]) -> Any:
    """Return a copy of a value in which everything is spelled out that orjson does not encode itself.

    :raises NotJson: a part is not JSON.
    """
    try:
        if len(path) > _DEEPEST:  # the same depth as orjson's, so that the stack cannot overflow
            raise _Refused(f"is nested deeper than {_DEEPEST} levels", "make the value flatter")
        if isinstance(value, Enum):
            return _spelled_out(value.value, path)
        if _is_record(value):
            value = _fields(value)
        if isinstance(value, str):
            half = _half_character(value)
            if half is not None:
                raise _Refused(f"is text with a lone surrogate at position {half}", _HALF)
            return value
        if isinstance(value, int):
            number = int.__index__(value)  # `in range` would search linearly for a subclass of int
            if abs(number) > _LARGEST_WHOLE:
                raise _too_large()
            return value if number in _WHOLE else orjson.Fragment(str(number))
        if isinstance(value, dict):
            members = {}
            for key, part in dict.items(value):
                if type(key) is not str:
                    raise _Refused(f"has a key of type {type(key).__name__}", "make its keys text: str(key)")
                if _half_character(key) is not None:
                    raise _Refused("has a key with a lone surrogate", _HALF)
                members[key] = _spelled_out(part, (*path, f".{key}"))
            return members
        if isinstance(value, list) or type(value) is tuple:
            items = []
            for position, part in enumerate(list.__iter__(value) if isinstance(value, list) else value):
                items.append(_spelled_out(part, (*path, f"[{position}]")))
            return items
        if isinstance(value, float):
            return _float(value)
        return orjson.Fragment(orjson.dumps(value, _plain, _OPTIONS))
    except _Refused as refused:
        raise NotJson(Misfit("".join(path).removeprefix("."), refused.found, refused.remedy)) from None
    except TypeError as error:
        cause = error.__cause__
        known = cause if isinstance(cause, _Refused) else _Refused(f"is not JSON: {error}", _PLAIN)
        raise NotJson(Misfit("".join(path).removeprefix("."), known.found, known.remedy)) from error


def _half_character(text: str) -> int | None:
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        return error.start
    return None
