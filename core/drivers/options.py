"""A table of options, and the readers of their values (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export_queue.core.errors import ExportQueueError, InvalidArgument

Read = Callable[[Any], Any]
"""Reads the value of an option; raises ``ValueError`` with what was expected. None leaves the option out."""
TEXT = "text"
_TRUE = frozenset(("1", "true", "t", "yes", "y", "on"))
_FALSE = frozenset(("0", "false", "f", "no", "n", "off"))


@dataclass(frozen=True, slots=True)
class Driver:
    """What one kind of connection takes.

    :param name: the kind, for errors.
    :param takes: the options that are honoured, and how each value is read.
    :param fixed: options that are taken with the one value that holds anyway.
    :param refuses: options that are known and cannot be honoured, each with the reason and the remedy.
    """

    name: str
    takes: Mapping[str, Read]
    fixed: Mapping[str, Read] = field(default_factory=dict, kw_only=True)
    refuses: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def read(
        self, given: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument
    ) -> dict[str, Any]:
        """Read options; empty values count as not given, since forms write untouched fields so.

        :param given: names and values, which may be texts.
        :param where: the place of the options, for errors.
        :param error: the class of the error.
        :raises ExportQueueError: an option is not taken, or has a wrong value. Values of unknown options are not shown.
        """
        if not isinstance(given, Mapping):
            raise error(f"{where}: expected an object of options, found {type(given).__name__}")
        found: dict[str, Any] = {}
        for name, value in given.items():
            if value is None or value == "" or value == {}:
                continue
            if name in self.refuses:
                raise error(f"{where}: option {name!r} cannot be honoured", hint=self.refuses[name])
            reader = self.takes.get(name) or self.fixed.get(name)
            if reader is None:
                raise error(
                    f"{where}: unknown option {name!r}; {self.name} takes {', '.join(sorted(self.takes)) or 'none'}",
                    hint="options are never ignored: correct its name, or remove it",
                )
            try:
                read = reader(value)
            except ValueError as expected:
                # A text may be a secret, and an object may hold one.
                is_shown = str(expected) != TEXT and isinstance(value, str | int | float)
                shown = f"{value!r:.60}" if is_shown else type(value).__name__
                raise error(f"{where}: option {name!r}: expected {expected}, found {shown}") from None
            if read is not None:
                found[name] = read
        return found


def check_files(options: Mapping[str, Any], *names: str, where: str, error: type[ExportQueueError]) -> None:
    """Make sure that files of options can be read, since drivers go on without some of them in silence.

    :param names: the options that name files or folders.
    :raises ExportQueueError: one cannot be read.
    """
    for name in names:
        if (path := options.get(name)) is None:
            continue
        try:
            if not Path(path).is_dir():
                Path(path).open("rb").close()
        except OSError as problem:
            raise error(f"{where}: option {name!r}: {path} cannot be read: {problem.strerror}") from None


def text(value: Any) -> str:
    """Read a text."""
    if isinstance(value, str) and value.isprintable():
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # what JSON makes of a text of digits
        return str(value)
    raise ValueError(TEXT)


def flag(value: Any) -> bool:
    """Read a switch, which may be a text; nothing else than a switch means off."""
    word = str(value).strip().lower()
    if isinstance(value, bool | int | str) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError("true or false")


def whole(value: Any) -> int:
    """Read a whole number from 0, which may be a text."""
    if not isinstance(value, bool) and isinstance(value, int | float | str):
        try:
            number = int(value) if isinstance(value, str) else value
            if number >= 0 and number == int(number):
                return int(number)
        except (ValueError, OverflowError):
            pass
    raise ValueError("a whole number from 0")


def between(low: int, high: int) -> Read:
    """Read a whole number within limits, both included."""

    def read(value: Any) -> int:
        if not low <= (number := whole(value)) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return number

    return read


def seconds(value: Any) -> float:
    """Read a time above 0, which may be a text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError("seconds above 0")
    return number


def digits(read: Callable[[Any], int]) -> Read:
    """Read a number or a switch for a driver that takes texts."""
    return lambda value: str(int(read(value)))


def one_of(*choices: str) -> Read:
    """Read one of some words; its case does not matter."""

    def read(value: Any) -> str:
        for choice in choices:
            if isinstance(value, str) and value.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return read


def must_be(wanted: bool, why: str) -> Read:
    """Read a switch that has one possible position here, and leave it out."""

    def read(value: Any) -> None:
        if flag(value) is not wanted:
            raise ValueError(f"{str(wanted).lower()}: {why}")

    return read


def always(*spellings: str, why: str) -> Read:
    """Read a word that says what is the case anyway, and leave it out."""

    def read(value: Any) -> None:
        if not isinstance(value, str) or value.lower() not in spellings:
            raise ValueError(f"{spellings[0]}: {why}")

    return read
