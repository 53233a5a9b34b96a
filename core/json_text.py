"""Values of users as JSON: exactly what was given, or an error that says where it is not JSON and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import orjson

_BIGGEST = (1 << 64) - 1
_SMALLEST = -(1 << 63)


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
        encoded = orjson.dumps(value)
    except TypeError as error:
        raise NotJson(next(_misfits(value, ""), Misfit("", f"is not JSON: {error}", _PLAIN))) from error
    if b"null" in encoded:  # only then anything may have been lost
        lost = next((misfit for misfit in _misfits(value, "") if misfit.remedy == _NO_NUMBER), None)
        if lost is not None:
            raise NotJson(lost)
    return encoded


_PLAIN = "convert it to text, a number, a list or a dict"
_NO_NUMBER = "send None or text in its place, or use a queue with the codec value='str' or 'bytes'"
_HALF = "repair the text: text.encode('utf-8', 'replace').decode()"


def _misfits(value: Any, path: str) -> Iterator[Misfit]:
    # As deep as the writer itself goes, so that this cannot run out of stack.
    if path.count("\0") > 254:
        yield Misfit(_shown(path), "is nested deeper than 254 levels", "make the value flatter")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Misfit(_shown(path), f"is {value}, which JSON has no number for", _NO_NUMBER)
    elif isinstance(value, str):
        half = _half_character(value)
        if half is not None:
            yield Misfit(_shown(path), f"is text with a lone surrogate at position {half}", _HALF)
    elif isinstance(value, int):
        if not _SMALLEST <= value <= _BIGGEST:
            yield Misfit(_shown(path), "is a whole number of more than 64 bits", "send it as text: str(number)")
    elif isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                kind = type(key).__name__
                yield Misfit(_shown(path), f"has a key of type {kind}", "make its keys text: str(key)")
            elif _half_character(key) is not None:
                yield Misfit(_shown(path), "has a key with a lone surrogate", _HALF)
            else:
                yield from _misfits(part, f"{path}\0.{key}")
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _misfits(part, f"{path}\0[{position}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _misfits(getattr(value, one.name, None), f"{path}\0.{one.name}")
    elif value is not None and not isinstance(value, bool):
        yield from _foreign(value, path)


def _foreign(value: Any, path: str) -> Iterator[Misfit]:
    try:
        orjson.dumps(value)  # dates, UUIDs, enumerations
    except TypeError:
        kind = type(value)
        remedy = "decode it: value.decode()" if kind is bytes else _PLAIN
        yield Misfit(_shown(path), f"is of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", ""), remedy)


def _half_character(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _shown(path: str) -> str:
    return path.replace("\0", "").removeprefix(".")
