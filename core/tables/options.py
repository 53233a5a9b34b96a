"""The stored options of a table."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum

from export_queue.core.errors import InvalidArgument, OptionsDiffer
from export_queue.core.store import Database, Reading, Work, queries

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")

MAX_TTL_SECONDS = 100 * 365 * 24 * 3600.0


class ConflictLevel(StrEnum):
    """The unit that two overlapping transactions must not both write."""

    ROW = "row"
    CELL = "cell"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table as it is stored."""

    name: str
    number: int
    conflict: ConflictLevel
    ttl_ms: int | None
    """Age in milliseconds from which a version counts as deleted."""


def check_name(what: str, name: str) -> str:
    """Check the name of a table or queue.

    :raises InvalidArgument: the message says what is allowed.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise InvalidArgument(
            f"{what}: expected 1-64 characters of a-z 0-9 _ . -, first and last a letter or digit, no '..'; "
            f"found {name!r}"
        )
    return name


def configure_table(
    database: Database, name: str, *, conflict: str = ConflictLevel.ROW, ttl: float | None = None
) -> TableOptions:
    """Store a table's options; the same options again change nothing.

    :param name: as a queue's name.
    :param conflict: ``row``, ``cell`` or ``none``: the unit that two overlapping transactions must not both write.
    :param ttl: seconds after which a version counts as deleted; None for never.
    :raises OptionsDiffer: the table exists with other options, which are listed.
    """
    check_name("table name", name)
    try:
        level = ConflictLevel(conflict)
    except ValueError as error:
        known = [c.value for c in ConflictLevel]
        raise InvalidArgument(f"conflict: expected one of {known}, found {conflict!r}") from error
    if ttl is not None and not 0.001 <= ttl <= MAX_TTL_SECONDS:
        raise InvalidArgument(f"ttl: expected 0.001 to {MAX_TTL_SECONDS:.0f} seconds, found {ttl!r}")
    ttl_ms = None if ttl is None else int(ttl * 1000)
    found = find_or_add_table(database, name, conflict=level, ttl_ms=ttl_ms)
    differences = []
    if found.conflict is not level:
        differences.append(f"conflict: expected {level.value}, found {found.conflict.value}")
    if found.ttl_ms != ttl_ms:
        differences.append(f"ttl: expected {ttl}, found {None if found.ttl_ms is None else found.ttl_ms / 1000}")
    if differences:
        raise OptionsDiffer(f"table {name!r} exists with other options: {'; '.join(differences)}")
    return found


def find_table(database: Database, name: str) -> TableOptions | None:
    """Read a table's options; None if it is not stored."""
    with database.read() as work:
        return _read(work, name)


def find_or_add_table(
    database: Database, name: str, *, conflict: ConflictLevel = ConflictLevel.ROW, ttl_ms: int | None = None
) -> TableOptions:
    """Read a table's options, or store these at its first use."""
    return find_table(database, name) or add_table(database.begin(), name, conflict=conflict, ttl_ms=ttl_ms)


def add_table(
    begun: AbstractContextManager[Work],
    name: str,
    *,
    conflict: ConflictLevel = ConflictLevel.ROW,
    ttl_ms: int | None = None,
) -> TableOptions:
    """Store a table's options, unless others have just done so.

    :param begun: a SQL transaction, which is ended.
    """
    check_name("table name", name)
    with begun as work:
        queries.queues.add_table(work, name, conflict.value, ttl_ms)
        added = _read(work, name)
    assert added is not None
    return added


def _read(work: Reading, name: str) -> TableOptions | None:
    row = queries.queues.table_row(work, name)
    if row is None:
        return None
    return TableOptions(row["name"], row["number"], ConflictLevel(row["conflict"]), row["ttl_ms"])
