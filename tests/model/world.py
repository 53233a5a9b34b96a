"""Where the model test runs: a store that begins empty for each example, and what its time is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy.util import LRUCache
from tests.model.expected import CONFLICT, Model
from tests.model.mortal import Life

from export_queue import Store
from export_queue.core.store import schema
from export_queue.core.store.creation import create
from export_queue.core.store.queries.outcomes import new_request
from export_queue.core.transactions import transaction as opening

BEGIN_MS = 1_800_000_000_000


class World:
    """One database and its time.

    :param ttl: seconds, of the table ``brief``.
    """

    has_clock = False
    """Whether time is the test's, to be moved forward and back."""

    cuts_sessions = False
    """Whether :meth:`cut_after` does anything."""

    def __init__(self, *, ttl: float) -> None:
        self.ttl = ttl
        self.deaths = 0
        """How often a process has died in the middle of a step."""
        self._compiled: LRUCache[Any, Any] = LRUCache(1000)

    def configure(self, store: Store) -> None:
        """Store the options of what the machine uses."""
        for name, conflict in CONFLICT.items():
            store.configure_table(name, conflict=conflict, ttl=self.ttl if name == "brief" else None)
        store.configure_queue("q", buckets=7, buckets_per_range=3)

    def open(self) -> Store:
        """Open the store as one more client."""
        store = self._open()
        store.database.engine._compiled_cache = self._compiled  # each process would compile all statements anew
        return store

    def _open(self) -> Store:
        raise NotImplementedError

    def reset(self) -> None:
        """Empty the store."""
        raise NotImplementedError

    def now(self) -> int:
        """Read the time."""
        raise NotImplementedError

    def move(self, milliseconds: int) -> None:
        """Let time pass, or go back."""
        raise NotImplementedError

    def pass_deadline(self, model: Model, store: Store, owner: int | None = None) -> None:
        """Let the deadline of one transaction pass, or of all that a row registers."""
        row = schema.active
        with store.database.begin() as work:
            statement = row.update().values(deadline_ms=0)
            work.connection.execute(statement if owner is None else statement.where(row.c.owner == owner))
            listed = set(work.connection.execute(row.select().with_only_columns(row.c.id)).scalars())
        for pointer, one in model.active.items():
            if pointer in listed and owner in (None, one.owner):
                one.deadline_ms, one.is_slow = 0, False

    def cut_after(self, changes: int | None) -> None:
        """Let the server end the session that makes the next change but so many, in the middle; None: no more."""

    def wait_for_end(self, life: Life) -> None:
        """Wait until the server knows that a process is dead."""


class FileWorld(World):
    """SQLite, with a clock of the test's."""

    has_clock = True

    def __init__(self, folder: Path) -> None:
        super().__init__(ttl=60)
        self._time, self._requests = BEGIN_MS, 0
        self._folder, self._number = folder, 0
        with Store.open(f"sqlite:///{folder / 'template.db'}", clock=self.now) as store:
            store.create()
            self.configure(store)

    @contextmanager
    def timed_requests(self) -> Iterator[None]:
        """Let requests say the test's time, too."""
        opening.new_request = self._new_request
        try:
            yield
        finally:
            opening.new_request = new_request

    def _new_request(self) -> UUID:
        self._requests += 1
        return UUID(int=self._time << 80 | 7 << 76 | 2 << 62 | self._requests)

    def _open(self) -> Store:
        return Store.open(f"sqlite:///{self._path}", clock=self.now)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number}.db"

    def reset(self) -> None:
        for suffix in ("", "-wal", "-shm", ".lock"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._time, self._requests, self._number = BEGIN_MS, 0, self._number + 1
        copyfile(self._folder / "template.db", self._path)

    def now(self) -> int:
        return self._time

    def move(self, milliseconds: int) -> None:
        self._time += milliseconds


class ServerWorld(World):
    """PostgreSQL, in one of the ways of registering ids; its time is its own, so deadlines are moved instead.

    :param url: an empty database, or one that holds a store.
    :param kind: as the fixture ``store_url`` is parametrised.
    """

    cuts_sessions = True

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(ttl=3600)
        self._url, self._kind = url, kind
        self._admin = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        with self.open() as store:
            create(store.database)
            self.configure(store)
            self._data = [
                f"export_queue.{table.name}"
                for table in schema.metadata.sorted_tables
                if table.name not in ("xq_store", "xq_last_id", "xq_table", "xq_queue", "xq_observed")
            ]
        self._admin.execute("""
            create sequence public.cut minvalue -9000000000000000000 maxvalue 100 increment by -1 start -1;
            create function public.cut() returns trigger language plpgsql as $$ begin
              if nextval('public.cut') = 0 then
                perform pg_terminate_backend(pg_backend_pid());
                perform pg_sleep(10);
              end if;
              return null;
            end $$""")
        for table in self._data:
            self._admin.execute(
                f"create trigger cut after insert or update or delete on {table} "
                "for each statement execute function public.cut()".encode()
            )

    def close(self) -> None:
        """Close the test's own connection."""
        self._admin.close()

    def _open(self) -> Store:
        return Store.open(self._url, behind_pooler=self._kind == "postgresql-pooler")

    def reset(self) -> None:
        self._admin.execute("; ".join(f"delete from {table}" for table in self._data).encode())
        self._admin.execute("update export_queue.xq_store set horizon = 0")

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def cut_after(self, changes: int | None) -> None:
        self._admin.execute("select setval('public.cut', %s)", (-1 if changes is None else changes + 1,))

    def wait_for_end(self, life: Life) -> None:
        end = time.monotonic() + 30
        while self._admin.execute("select 1 from pg_stat_activity where pid = any(%s)", (life.sessions,)).fetchone():
            assert time.monotonic() < end, "the server keeps the sessions of a dead process"
            time.sleep(0.005)


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """Make a folder, in memory where there is one: what is tested is order, not the disk."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="xq-model-", dir=memory if memory.is_dir() else None)
