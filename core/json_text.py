"""Values of users as JSON: exactly what was given, or an error that says where it is not JSON and what to do.

``docs/values.md`` has the table of types. numpy and pandas are known by the names of their types, never imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson

_WHOLE = range(-(1 << 63), 1 << 64)
"""Whole numbers that the writer takes as they are."""
_LARGEST = Decimal("1.7976931348623157E+308")
"""The largest number that readers of JSON can hold as a double."""
_LARGEST_WHOLE = int(_LARGEST)
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""Times may lack a zone; of a dataclass the writer would leave out the fields that begin with an underscore."""
_DEEPEST = 254


@dataclass(frozen=True, slots=True)
class Misfit:
    """One part of a value that is not JSON."""

    path: str
    """Keys and positions that lead to it, such as ``lines[2].price``; empty for the value itself."""
    found: str
    """Its kind, never its content."""
    remedy: str

    def __str__(self) -> str:
        return f"{f'field {self.path}' if self.path else 'the value'} {self.found}"


class NotJson(ValueError):
    """A value is not JSON; ``misfit`` says where."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(str(misfit))
        self.misfit = misfit


def json_bytes(value: Any) -> bytes:
    """Write a value as JSON.

    :raises NotJson: a part of it is not JSON; NaN and Infinity are not, although many writers make null of them.
    """
    try:
        encoded = orjson.dumps(value, _plain, _OPTIONS)
    except TypeError as error:
        encoded = _with_large_numbers(value, error)
    if b"null" in encoded and _lost(value):  # only then anything may have been lost
        raise NotJson(next(_misfits(value, ())))
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
    "numpy.ndarray": "send a list: value.tolist()",
    "numpy.longdouble": "send the nearest double: float(value)",
}


def _plain(value: Any) -> Any:
    """Return what the writer can write in the place of a value that it does not know."""
    kind: Any = type(value)
    convert = _CONVERSIONS.get(kind)
    if convert is None:
        convert = _conversion(kind)
    return convert(value)


def _decimal(value: Decimal) -> orjson.Fragment:
    if not value.is_finite():
        raise _Refused(f"is {value}, which JSON has no number for", _NO_NUMBER)
    if value.copy_abs() > _LARGEST:
        raise _too_large()
    return orjson.Fragment(str(value))


def _too_large() -> _Refused:
    return _Refused(f"is a number beyond {_LARGEST:.1E}, which readers of JSON cannot hold", "send it as text: str(…)")


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise _Refused(f"is {float(value)}, which JSON has no number for", _NO_NUMBER)
    return float(value)


def _datetime(value: datetime) -> str | orjson.Fragment:
    if value.tzinfo is UTC and type(value) is datetime:
        return orjson.Fragment(orjson.dumps(value))  # in a quarter of the time of isoformat
    return _moment(value)


def _moment(value: datetime | time) -> str:
    text = value.isoformat()
    if text[-6] not in "+-" and value.utcoffset() is None:  # most offsets are whole minutes, and seen in the text
        raise _Refused(f"is a {type(value).__name__} without a zone", _ZONE if isinstance(value, date) else _NO_ZONE)
    return text


def _fields(value: Any) -> dict[str, Any]:
    try:
        kind: Any = type(value)
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
    time: _moment,
}


@lru_cache(maxsize=1024)
def _conversion(kind: type) -> Callable[[Any], Any]:
    """Find how values of a type are written: of subclasses, dataclasses, numpy and pandas."""
    names = {(one.__module__.partition(".")[0], one.__name__) for one in kind.__mro__}
    if ("pandas", "NaTType") in names or ("pandas", "NAType") in names:
        return _missing
    if issubclass(kind, float):
        return _float
    if ("numpy", "generic") in names:
        return _naive if kind.__name__ == "datetime64" else _numpy_scalar
    for known, convert in _CONVERSIONS.items():
        if issubclass(kind, known):
            return convert
    return _fields if is_dataclass(kind) else _refuse


@lru_cache(maxsize=1024)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _with_large_numbers(value: Any, error: TypeError) -> bytes:
    """Write a value that the writer has refused, since it may only hold whole numbers of more than 64 bits."""
    misfit = next(_misfits(value, ()), None)
    if misfit is not None:
        raise NotJson(misfit) from error
    try:
        return orjson.dumps(_spelled_out(value), _plain, _OPTIONS)
    except TypeError as again:
        raise NotJson(Misfit("", f"is not JSON: {again}", _PLAIN)) from again


def _spelled_out(value: Any) -> Any:
    """Copy a value, its large whole numbers as the digits that they are."""
    if isinstance(value, int):
        return value if value in _WHOLE else orjson.Fragment(str(int(value)))
    if isinstance(value, dict):
        return {key: _spelled_out(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled_out(part) for part in value]
    if isinstance(value, Enum):
        return _spelled_out(value.value)
    return _spelled_out(_fields(value)) if _is_record(value) else value


def _lost(value: Any) -> bool:
    """Tell whether the writer has made null of a number."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if value is None or isinstance(value, str | int):
        return False
    if isinstance(value, dict):
        return any(map(_lost, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_lost, value))
    if isinstance(value, Enum):
        return _lost(value.value)
    return _is_record(value) and any(map(_lost, _fields(value).values()))


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


_Path = tuple[str, ...]


def _misfits(value: Any, path: _Path) -> Iterator[Misfit]:
    # As deep as the writer itself goes, so that this cannot run out of stack.
    if len(path) > _DEEPEST:
        yield Misfit(_shown(path), f"is nested deeper than {_DEEPEST} levels", "make the value flatter")
    elif isinstance(value, Enum):
        yield from _misfits(value.value, path)
    elif isinstance(value, str):
        half = _half_character(value)
        if half is not None:
            yield Misfit(_shown(path), f"is text with a lone surrogate at position {half}", _HALF)
    elif isinstance(value, int):
        if not -_LARGEST_WHOLE <= value <= _LARGEST_WHOLE:
            yield _misfit(_too_large(), path)
    elif isinstance(value, dict):
        for key, part in value.items():
            if type(key) is not str:
                kind = type(key).__name__
                yield Misfit(_shown(path), f"has a key of type {kind}", "make its keys text: str(key)")
            elif _half_character(key) is not None:
                yield Misfit(_shown(path), "has a key with a lone surrogate", _HALF)
            else:
                yield from _misfits(part, (*path, f".{key}"))
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        for position, part in enumerate(value):
            yield from _misfits(part, (*path, f"[{position}]"))
    elif value is not None:
        yield from _foreign(value, path)


def _foreign(value: Any, path: _Path) -> Iterator[Misfit]:
    try:
        if isinstance(value, float):
            _float(value)
        elif _is_record(value):
            for name, part in _fields(value).items():
                yield from _misfits(part, (*path, f".{name}"))
        else:
            orjson.dumps(value, _plain, _OPTIONS)
    except _Refused as refused:
        yield _misfit(refused, path)
    except TypeError as error:
        cause = error.__cause__
        yield _misfit(cause if isinstance(cause, _Refused) else _Refused(f"is not JSON: {error}", _PLAIN), path)


def _misfit(refused: _Refused, path: _Path) -> Misfit:
    return Misfit(_shown(path), refused.found, refused.remedy)


def _half_character(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _shown(path: _Path) -> str:
    return "".join(path).removeprefix(".")
