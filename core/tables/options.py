"""The stored options of a table."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum

from export_queue.core.arguments import check_text
from export_queue.core.codecs import ROWS, VALUES, check_codec
from export_queue.core.errors import InvalidArgument, OptionsDiffer
from export_queue.core.store import Database, Reading, Work, queries

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")

_SHOWN_NAMES = 20
"""Maximum number of names in an error."""
MAX_TTL_SECONDS = 100 * 365 * 24 * 3600.0


class ConflictLevel(StrEnum):
    """The unit of conflicts: of two overlapping transactions that write the same one, at most one commits."""

    ROW = "row"
    CELL = "cell"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The stored options of a table."""

    name: str
    number: int = 0
    conflict: ConflictLevel = ConflictLevel.ROW
    ttl_ms: int | None = None
    """Age in milliseconds from which a version counts as deleted."""
    row: str = "bytes"
    """Type of the rows: ``bytes``, ``str``, ``int`` or an import path."""
    value: str = "bytes"
    """Type of the values: ``bytes``, ``str``, ``int``, ``json`` or an import path."""


_RULE = "1-64 characters of a-z 0-9 _ . -, first and last a letter or digit, no '..'"


def check_name(what: str, name: str) -> str:
    """Check the name of a table or queue, and return it."""
    check_text(name, what=what, rule=_RULE)
    if not _NAME.fullmatch(name) or ".." in name:
        raise InvalidArgument(f"{what}: expected {_RULE}; found {name!r}")
    return name


def configure_table(
    database: Database,
    name: str,
    *,
    conflict: str = ConflictLevel.ROW,
    ttl: float | None = None,
    row: str = "bytes",
    value: str = "bytes",
) -> TableOptions:
    """Create a table with these options. If it exists with the same options, nothing changes.

    :param name: 1–64 characters of ``a-z 0-9 _ . -``.
    :param conflict: ``row``, ``cell`` or ``none``: the unit of conflicts. Of two overlapping transactions that write
        the same one, at most one commits.
    :param ttl: seconds after which a version counts as deleted; None for never.
    :param row: type of the rows: ``bytes``, ``str``, ``int``, or the import path ``module:name`` of an object with
        ``encode(value) -> bytes`` and ``decode(bytes) -> value``. With ``bytes``, columns are returned as bytes, and
        otherwise as text.
    :param value: type of the values: ``bytes``, ``str``, ``int``, ``json``, or an import path.
    :raises OptionsDiffer: the table exists with other options; the error lists them.
    :raises CodecError: an import path does not lead to a codec.
    """
    check_name("table name", name)
    try:
        level = ConflictLevel(conflict)
    except ValueError as error:
        known = [c.value for c in ConflictLevel]
        raise InvalidArgument(f"conflict: expected one of {known}, found {conflict!r}") from error
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if ttl is not None and not (is_number and 0.001 <= ttl <= MAX_TTL_SECONDS):
        raise InvalidArgument(f"ttl: expected 0.001 to {MAX_TTL_SECONDS:.0f} seconds, found {ttl!r}")
    check_codec("row", row, ROWS)
    check_codec("value", value, VALUES)
    wanted = TableOptions(name, 0, level, None if ttl is None else int(ttl * 1000), row, value)
    found = find_table(database, name) or add_table(database.begin(), wanted)
    differences = [
        f"{what}: expected {expected!r}, found {there!r}"
        for what, expected, there in zip(_OPTIONS, _shown(wanted), _shown(found), strict=True)
        if expected != there
    ]
    if differences:
        raise OptionsDiffer(f"table {name!r} exists with other options: {'; '.join(differences)}")
    return found


_OPTIONS = ("conflict", "ttl", "row", "value")


def _shown(options: TableOptions) -> tuple[object, ...]:
    """Return the options in the units of :func:`configure_table`."""
    ttl = None if options.ttl_ms is None else options.ttl_ms / 1000
    return options.conflict.value, ttl, options.row, options.value


def find_table(database: Database, name: str) -> TableOptions | None:
    """Return a table's options, or None if there is no such table."""
    check_text(name, what="table name")
    with database.read() as work:
        return _read(work, name)


def known_table(database: Database, name: str) -> TableOptions:
    """Return a table's options.

    :raises InvalidArgument: there is no such table; the error names those that there are.
    """
    found = find_table(database, name)
    if found is None:
        with database.read() as work:
            names = queries.queues.table_names(work, limit=_SHOWN_NAMES + 1)
        more = ", …" if len(names) > _SHOWN_NAMES else ""
        raise InvalidArgument(
            f"the store has no table {name!r}; it has: {', '.join(names[:_SHOWN_NAMES]) or 'none'}{more}"
        )
    return found


def add_table(begun: AbstractContextManager[Work], options: TableOptions) -> TableOptions:
    """Create a table, unless it exists, and return its stored options.

    :param begun: a SQL transaction, which this function ends.
    :param options: the options; their number is ignored.
    """
    check_name("table name", options.name)
    with begun as work:
        queries.queues.add_table(
            work,
            options.name,
            conflict=options.conflict.value,
            ttl_ms=options.ttl_ms,
            row_codec=options.row,
            value_codec=options.value,
        )
        added = _read(work, options.name)
    assert added is not None
    return added


def _read(work: Reading, name: str) -> TableOptions | None:
    found = queries.queues.table_row(work, name)
    if found is None:
        return None
    level = ConflictLevel(found["conflict"])
    return TableOptions(
        found["name"], found["number"], level, found["ttl_ms"], found["row_codec"], found["value_codec"]
    )
