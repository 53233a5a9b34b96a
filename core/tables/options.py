"""The stored options of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from export_queue.core.errors import InvalidArgument, OptionsDiffer
from export_queue.core.store import Database, Work
from export_queue.core.store.queues import add_table, table_row

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")


class ConflictLevel(StrEnum):
    """What two overlapping transactions must not both write."""

    ROW = "row"
    CELL = "cell"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table as it is stored."""

    name: str
    number: int
    conflict: ConflictLevel


def check_name(what: str, name: str) -> str:
    """Check the name of a table or queue.

    :raises InvalidArgument: with what is allowed.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise InvalidArgument(
            f"{what}: expected 1-64 characters of a-z 0-9 _ . -, first and last a letter or digit, no '..'; "
            f"found {name!r}"
        )
    return name


def configure_table(database: Database, name: str, *, conflict: str = ConflictLevel.ROW) -> TableOptions:
    """Store a table's options; the same options again change nothing.

    :param name: as a queue's name.
    :param conflict: ``row``, ``cell`` or ``none``: what two overlapping transactions must not both write.
    :raises OptionsDiffer: the table exists with other options.
    """
    check_name("table name", name)
    try:
        wanted = ConflictLevel(conflict)
    except ValueError as error:
        raise InvalidArgument(
            f"conflict: expected one of {[c.value for c in ConflictLevel]}, found {conflict!r}"
        ) from error
    found = find_or_add_table(database, name, wanted)
    if found.conflict is not wanted:
        raise OptionsDiffer(
            f"table {name!r} exists with other options: conflict: expected {wanted.value}, found {found.conflict.value}"
        )
    return found


def find_or_add_table(database: Database, name: str, conflict: ConflictLevel = ConflictLevel.ROW) -> TableOptions:
    """Read a table's options, or store these at its first use."""
    with database.read() as work:
        found = _read(work, name)
    if found is not None:
        return found
    check_name("table name", name)
    with database.begin() as work:
        add_table(work, name, conflict.value)
        added = _read(work, name)
    assert added is not None
    return added


def _read(work: Work, name: str) -> TableOptions | None:
    row = table_row(work, name)
    return None if row is None else TableOptions(row["name"], row["number"], ConflictLevel(row["conflict"]))
