"""The vocabulary of a history: what one client did and saw in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias


class ReadList(NamedTuple):
    """A list was read, as a whole."""

    key: str
    values: tuple[int, ...]


class Append(NamedTuple):
    """A value was appended to a list, whether by the database or by writing back what was read and one more."""

    key: str
    value: int
    """Never appended to this list by anybody else."""


class Read(NamedTuple):
    """A register was read."""

    key: str
    value: int | None


class Write(NamedTuple):
    """A register was overwritten, read before or not."""

    key: str
    value: int
    """Never written to this register by anybody else."""


Operation: TypeAlias = ReadList | Append | Read | Write


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTransaction:
    """What one client did and saw in one transaction."""

    session: str
    """Who ran it; the transactions of a session are given in their order, and do not overlap."""
    operations: Sequence[Operation] = ()
    """In the order in which they were done."""
    status: Literal["ok", "aborted", "unknown"] = "ok"
    """What its client was told. What is unknown counts as committed if somebody saw its writes."""
    id: int | None = None
    """Its start timestamp, if it is known; needed of those that write registers."""
    begin: int | None = None
    """Before its first operation, by a clock that all clients share; None if nothing is known."""
    end: int | None = None
    """After it had been acknowledged; None if it was not."""
