"""Stores that are put back in milliseconds, for :mod:`tests.support.schedules`: a copy of a file, rows of a schema."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg
import sqlalchemy as sa
from tests.support.switch_points import Footprints, Points

from export_queue import Store
from export_queue.core.store import Database
from export_queue.core.store.postgresql.opening import open_dialect as open_postgres_dialect
from export_queue.core.store.postgresql.opening import open_engine as open_postgres
from export_queue.core.store.sqlite.file import StoreFile, open_engine
from export_queue.core.store.sqlite.opening import open_dialect

SCHEMA = "export_queue"
_START_MS = 1_790_000_000_000
_RUNS_MS = _START_MS + 100_000
"""When a run begins: after the store was built, and before a drain cleans up again; ``maintain`` is an operation."""


class Stand(Protocol):
    """One store, and its files, which are put back after each run."""

    name: str
    segments: Path

    def build(self, fill: Callable[[Store], None]) -> None:
        """Create the store anew, fill it, and keep what it holds then."""

    def put_back(self) -> None:
        """Let the store hold what it held when it was built."""

    def open(self, number: int) -> Store:
        """Open the store as a process of its own does, with a pool that is kept for its number."""

    def points(self, *, every_statement: bool = False) -> Points:
        """Return the hooks for the store."""


class _Files:
    """The files of a store beside their copy."""

    def __init__(self, folder: Path) -> None:
        self.path, self._kept = folder / "segments", folder / "kept"

    def keep(self) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)
        if self.path.exists():
            shutil.copytree(self.path, self._kept)

    def put_back(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._kept.exists():
            shutil.copytree(self._kept, self.path)


class SqliteStand:
    """A store in a file.

    :param folder: an empty one, in memory as a rule.
    """

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path, self._kept = folder / "store.db", folder / "kept.db"
        self._files = _Files(folder)
        self.segments = self._files.path
        self._clock = count(_START_MS)
        self._engines: dict[int, tuple[sa.Engine, StoreFile]] = {}
        self._bodies: dict[str, str] = {}
        self._triggers: dict[str, str] = {}
        self._footprints: Footprints | None = None

    def build(self, fill: Callable[[Store], None]) -> None:
        self._clear()
        self._clock = count(_START_MS)  # before that of the runs
        shutil.rmtree(self.segments, ignore_errors=True)
        with self.open(0) as store:
            store.create()
            fill(store)
            with store.database.read() as work:
                found = work.connection.exec_driver_sql(
                    "select type, name, tbl_name, sql from sqlite_schema where type in ('trigger', 'view')"
                ).all()
        for kind, name, table, text in found:
            _append(*((self._triggers, table) if kind == "trigger" else (self._bodies, name)), text)
        self._clear(keeps=self._kept)
        self._files.keep()

    def put_back(self) -> None:
        self._clear()
        shutil.copyfile(self._kept, self._path)
        self._files.put_back()
        self._clock = count(_RUNS_MS)

    def open(self, number: int) -> Store:
        if number not in self._engines:
            file = StoreFile(str(self._path))
            self._engines[number] = (open_engine(sa.make_url(file.url), file), file)
        engine, file = self._engines[number]
        dialect = open_dialect(file, lambda: next(self._clock))
        return Store(Database(engine, dialect, shown_url=file.url, segments=str(self.segments)))

    def points(self, *, every_statement: bool = False) -> Points:
        self._footprints = self._footprints or Footprints(self._bodies, self._triggers)
        return Points(self._footprints)

    def _clear(self, *, keeps: Path | None = None) -> None:
        for engine, file in self._engines.values():
            engine.dispose()
            file.forget()
        if keeps is not None:
            shutil.copyfile(self._path, keeps)
        for end in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)


class PostgresStand:
    """A store in a database of PostgreSQL: its rows are copied into another schema, and back.

    :param url: of a database that holds a store.
    :param folder: for its files, empty.
    """

    name = "postgresql"

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._files = _Files(folder)
        self.segments = self._files.path
        self._engines: dict[int, sa.Engine] = {}
        self._opened: dict[int, Database] = {}
        self._admin: psycopg.Connection[Any] = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._admin.execute("set session_replication_role = replica; set synchronous_commit = off")
        self._footprints: Footprints | None = None
        self._tables: list[str] = []

    def build(self, fill: Callable[[Store], None]) -> None:
        found = self._admin.execute("select tablename from pg_tables where schemaname = %s", (SCHEMA,)).fetchall()
        self._tables = [f'"{name}"' for (name,) in found]
        if not self._admin.execute("select 1 from pg_namespace where nspname = 'empty'").fetchone():
            self._keep("empty")
        self._restore("empty")
        shutil.rmtree(self.segments, ignore_errors=True)
        store = self.open(0)
        fill(store)
        store.database.hints.close()
        self._keep("kept")
        self._files.keep()

    def _keep(self, schema: str) -> None:
        self._admin.execute(f"drop schema if exists {schema} cascade; create schema {schema}".encode())
        for table in self._tables:
            self._admin.execute(f"create table {schema}.{table} as table {SCHEMA}.{table}".encode())
        columns = {
            table: ", ".join(
                f'"{name}"'
                for (name,) in self._admin.execute(
                    "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 "
                    "and not attisdropped and attgenerated = '' order by attnum",
                    (f"{SCHEMA}.{table}",),
                ).fetchall()
            )
            for table in self._tables
        }
        filled = [
            table
            for table in self._tables
            if self._admin.execute(f"select exists (select from {schema}.{table})".encode()).fetchone() == (True,)
        ]
        steps = [f"delete from {SCHEMA}.{table};" for table in self._tables] + [
            f"insert into {SCHEMA}.{table} ({columns[table]}) overriding system value "
            f"select {columns[table]} from {schema}.{table};"
            for table in filled
        ]
        self._admin.execute(f"create procedure {schema}.restore() language sql as $$ {' '.join(steps)} $$".encode())

    def _restore(self, schema: str) -> None:
        self._admin.execute(f"call {schema}.restore()".encode())

    def put_back(self) -> None:
        self._restore("kept")
        self._files.put_back()

    def open(self, number: int) -> Store:
        if number not in self._engines:
            url = sa.make_url(self._url)
            self._engines[number] = open_postgres(url, SCHEMA, password=url.password)
        engine = self._engines[number]
        dialect = open_postgres_dialect(engine, SCHEMA)
        dialect.wake_ups = None  # their thread would have a part that no plan names
        former = self._opened.get(number)
        database = Database(engine, dialect, shown_url="postgresql://", segments=str(self.segments))
        if former is not None:
            database.pool._idle = former.pool._idle  # connecting would take longer than a run
        self._opened[number] = database
        return Store(database)

    def points(self, *, every_statement: bool = False) -> Points:
        if self._footprints is None:
            rows = self._admin.execute(
                "select false, proname, prosrc from pg_proc where pronamespace = %s::regnamespace union all "
                "select false, viewname, definition from pg_views where schemaname = %s union all "
                "select true, c.relname, p.prosrc from pg_trigger t join pg_class c on c.oid = t.tgrelid "
                "join pg_proc p on p.oid = t.tgfoid where c.relnamespace = %s::regnamespace and not t.tgisinternal",
                (SCHEMA, SCHEMA, SCHEMA),
            ).fetchall()
            bodies: dict[str, str] = {}
            triggers: dict[str, str] = {}
            for is_trigger, name, text in rows:
                _append(triggers if is_trigger else bodies, name, text)
            self._footprints = Footprints(bodies, triggers)
        return Points(self._footprints, every_statement=every_statement, is_blocked=self._is_blocked)

    def _is_blocked(self, pid: int) -> bool:
        return self._admin.execute("select cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone() == (True,)

    def close(self) -> None:
        """Close all connections."""
        for engine in self._engines.values():
            engine.dispose()
        self._admin.close()


def _append(texts: dict[str, str], name: str, text: str) -> None:
    texts[name] = texts.get(name, "") + "\n" + text
