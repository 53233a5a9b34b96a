"""Reading in a SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import sqlalchemy as sa

from export_queue.core.store.dialect import Handle, Span, Version, VersionKey
from export_queue.core.store.snapshot import Snapshot
from export_queue.core.store.sqlite import statements as sql


class SqliteReads:
    """The steps that only read, each in one SQL snapshot."""

    def take_snapshot(self, connection: Handle) -> Snapshot:
        """Read the clock and the active rows in one SQL snapshot: every id up to it is listed or finished."""
        raw = raw_of(connection)
        raw.execute("begin")
        try:
            last = int(raw.execute("select last_id from xq_clock").fetchone()[0])
            return Snapshot(last, unfinished(raw, last + 1))
        finally:
            raw.execute("rollback")

    def read_cell(self, connection: Handle, snapshot: Snapshot, table: int, row: bytes, column: bytes) -> Version:
        """Read the newest visible version, and the horizon in the same statement."""
        raw = raw_of(connection)
        arguments = {"table": table, "row": row, "column": column, "pointer": snapshot.read_pointer}
        if snapshot.is_prefix:
            found = raw.execute(sql.READ_CELL_UP_TO, arguments).fetchone()
        else:
            arguments |= {"own": f"[{snapshot.write_pointers_text}]", "hidden": f"[{snapshot.excluded_text}]"}
            found = raw.execute(sql.READ_CELL, arguments).fetchone()
        # Where nothing was found the horizon may be read later: it only grows.
        horizon, version, value = found or (*raw.execute(sql.HORIZON).fetchone(), None, None)
        snapshot.require_above(horizon)
        return version, value

    def read_cells(
        self, connection: Handle, snapshot: Snapshot, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read many cells; in SQLite a statement a cell costs less than one for all."""
        found = []
        for row, column in cells:
            version, value = self.read_cell(connection, snapshot, table, row, column)
            if version is not None:
                found.append((row, column, version, value))
        return found

    def scan_versions(
        self,
        connection: Handle,
        snapshot: Snapshot,
        table: int,
        span: Span,
        *,
        after: VersionKey,
        limit: int,
        expired: int | None = None,
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        """Read the first visible versions of a span in order."""
        raw = raw_of(connection)
        arguments: dict[str, object] = {"table": table, "pointer": snapshot.read_pointer, "limit": limit}
        arguments |= {"own": f"[{snapshot.write_pointers_text}]", "hidden": f"[{snapshot.excluded_text}]"}
        arguments |= {"end": span.end_row, "expired": expired}
        arguments |= dict(zip(("after_row", "after_column", "after_version"), after, strict=True))
        arguments |= {f"column{i}": column for i, column in enumerate(span.columns)}
        statement = sql.scan(span, hidden=not snapshot.is_prefix, expires=expired is not None)
        found = raw.execute(statement, arguments).fetchall()
        snapshot.require_above(raw.execute(sql.HORIZON).fetchone()[0])  # read later it is no smaller
        return found


def raw_of(connection: Handle) -> sqlite3.Connection:
    """Give the driver's connection."""
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def unfinished(raw: sqlite3.Connection, below: int) -> tuple[int, ...]:
    """Read the ids below a bound that are in progress or invalid, ascending."""
    rows = raw.execute(
        "select id from xq_active where id < ? union select id from xq_invalid where id < ? order by 1", (below, below)
    )
    return tuple(row[0] for row in rows)
