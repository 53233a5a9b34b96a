"""Tables of options, and functions that read their values (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export_queue.core.errors import ExportQueueError, InvalidArgument

Read = Callable[[Any], Any]
"""Reads an option's value. Raises ``ValueError`` with what was expected. None means that the option is left out."""
TEXT = "text"
_TRUE = frozenset(("1", "true", "t", "yes", "y", "on"))
_FALSE = frozenset(("0", "false", "f", "no", "n", "off"))


@dataclass(frozen=True, slots=True)
class Driver:
    """The options of one kind of connection."""

    name: str
    """The kind, for errors."""
    takes: Mapping[str, Read]
    """Options that are passed to the driver."""
    fixed: Mapping[str, Read] = field(default_factory=dict, kw_only=True)
    """Options that are accepted only with the value that always holds."""
    refuses: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Known options that cannot be honoured, each with the reason and the remedy."""

    def read(
        self, given: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument
    ) -> dict[str, Any]:
        """Read options. Empty values count as not given, since forms write them for untouched fields.

        :param given: names and values; values may be text.
        :param where: where the options come from, for errors.
        :param error: the class of the errors.
        :raises ExportQueueError: an option is unknown or has a wrong value. Values of unknown options are not shown.
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
                # A text may be a secret, and an object or a URL with a user may hold one.
                is_shown = str(expected) != TEXT and isinstance(value, str | int | float) and "@" not in str(value)
                shown = f"{value!r:.60}" if is_shown else type(value).__name__
                raise error(f"{where}: option {name!r}: expected {expected}, found {shown}") from None
            if read is not None:
                found[name] = read
        return found


def check_files(options: Mapping[str, Any], *names: str, where: str, error: type[ExportQueueError]) -> None:
    """Make sure that the files or folders of some options can be read: drivers silently continue without some."""
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
    if isinstance(value, int) and not isinstance(value, bool):  # JSON turns a text of digits into a number
        return str(value)
    raise ValueError(TEXT)


def flag(value: Any) -> bool:
    """Read a switch, which may be a text. Only the known words for off mean off."""
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
    """Read a number or a switch, and return it as the text that the driver takes."""
    return lambda value: str(int(read(value)))


def one_of(*choices: str) -> Read:
    """Read one of several words, in any case."""

    def read(value: Any) -> str:
        for choice in choices:
            if isinstance(value, str) and value.lower() == choice.lower():
                return choice
        raise ValueError(" or ".join(choices))

    return read


def must_be(wanted: bool, why: str) -> Read:
    """Accept only one position of a switch, and leave the option out."""

    def read(value: Any) -> None:
        if flag(value) is not wanted:
            raise ValueError(f"{str(wanted).lower()}: {why}")

    return read


def always(*spellings: str, why: str) -> Read:
    """Accept only the word that always holds, and leave the option out."""

    def read(value: Any) -> None:
        if not isinstance(value, str) or value.lower() not in spellings:
            raise ValueError(f"{spellings[0]}: {why}")

    return read
