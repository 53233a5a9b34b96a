"""A client whose connections are cut at an exact byte, and what then is true in the database."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from uuid import UUID

import psycopg
import sqlalchemy as sa
from tests.support.proxy import Cut, CuttingProxy, Direction
from tests.support.waiting import wait_until

from export_queue import CommitOutcomeUnknown, ExportQueueError, Store, TransactionContext
from export_queue.core.store import schema
from export_queue.core.transactions import expire, prune, take_snapshot

DIRECTIONS: tuple[Direction, ...] = ("to_server", "to_client")
PATIENCE = 60.0
"""Seconds that even a slow machine does not need; nothing waits for so long when all is well."""
_numbers = count()


@dataclass
class Attempt:
    """One unit of work: its name is its row, the key of its entry and its idempotency key."""

    name: str
    timeout: float | None = None
    request: UUID | None = None
    told: str = ""
    """committed, refused, unknown."""
    error: Exception | None = None


class GivenUp(Exception):
    """What a block raises that wants its transaction aborted."""


class Truth:
    """What the database holds, seen through a plain connection."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._connection.execute("set search_path to export_queue")

    def close(self) -> None:
        self._connection.close()

    def one(self, statement: str, *arguments: object) -> object:
        row = self._connection.execute(statement.encode(), arguments).fetchone()
        assert row is not None
        return row[0]

    def rows_of(self, name: str) -> tuple[object, object]:
        key = name.encode()
        return (
            self.one("select count(*) from xq_cell where row_key = %s", key),
            self.one("select count(*) from xq_entry where key = %s", key),
        )

    def status(self, request: UUID | None) -> object:
        return self.one("select (select status from xq_outcome where request = %s)", request)

    def sessions(self, application: str) -> object:
        return self.one("select count(*) from pg_stat_activity where application_name = %s", application)

    def locks(self) -> object:
        return self.one(
            "select count(*) from pg_locks where locktype = 'advisory' "
            "and database = (select oid from pg_database where datname = current_database())"
        )


def fill(tx: TransactionContext, name: str) -> None:
    tx.table("t").set(name, "n", b"1")
    tx.queue("q").add(name, name)


class Cutter:
    """A store seen through a proxy, and the same store seen directly."""

    def __init__(self, url: str) -> None:
        self.application = f"cut{os.getpid()}x{next(_numbers):03d}"
        parsed = sa.make_url(url)
        assert parsed.host is not None
        assert parsed.port is not None
        self.proxy = CuttingProxy(parsed.host, parsed.port)
        through = parsed.set(port=self.proxy.port).update_query_dict({"application_name": self.application})
        self.store = Store.open(through.render_as_string(hide_password=False))
        self.store.database.dialect.wake_ups = None  # their thread would be cut in the place of a commit
        self.direct = Store.open(url)
        self.truth = Truth(url)
        self._names = count()

    @classmethod
    @contextlib.contextmanager
    def on(cls, url: str) -> Iterator[Cutter]:
        cutter = cls(url)
        with cutter.proxy, cutter.store, cutter.direct, contextlib.closing(cutter.truth):
            cutter.direct.create()
            cutter.direct.configure_queue("q")
            cutter.direct.configure_table("t")
            for kind in COMMITS:  # what is read once is read before anything is cut
                assert cutter.attempt(kind, None).told == "committed"
            yield cutter

    def attempt(
        self,
        kind: str,
        cut: Cut | None,
        *,
        timeout: float | None = None,
        warm: bool = True,
        before_commit: Callable[[], object] = lambda: None,
    ) -> Attempt:
        """Let one unit of work run while its connection is cut.

        :param warm: whether there is a connection before the cut is armed.
        """
        attempt = Attempt(f"{kind}-{self.application}-{next(self._names):06d}", timeout)
        self.proxy.arm()
        if warm:
            self.store.database.engine.connect().close()
        self.store.database.expired_at = time.monotonic() if warm else 0.0  # a sweep would come between
        try:
            KINDS[kind](self.store, attempt, lambda: (self.proxy.arm(cut), before_commit()))
        except CommitOutcomeUnknown as error:
            attempt.told, attempt.error = "unknown", error
        except (ExportQueueError, GivenUp) as error:
            attempt.told, attempt.error = "refused", error
        else:
            attempt.told = "committed"
        return attempt

    def end_sessions(self) -> None:
        """Close the client's connections and wait until the server has none of them."""
        self.proxy.disarm()
        self.store.database.forget_connections()
        wait_until(lambda: not self.truth.sessions(self.application), "a server session stays")

    def check(self, attempt: Attempt) -> None:
        """Compare what the client was told with what is there."""
        found = self.truth.rows_of(attempt.name)
        status = self.truth.status(attempt.request)
        told = f"told {attempt.told} ({attempt.error!r}), found {found} and outcome {status}"
        if attempt.told == "committed":
            assert (found, status) == ((1, 1), "committed"), told
        elif attempt.told == "refused":
            assert found == (0, 0), told
            assert status != "committed", told
        else:
            assert found == ((1, 1) if status == "committed" else (0, 0)), told

    def check_nothing_stays(self) -> None:
        """No lock of ours, no id in progress once what broke has passed its deadline and has been swept."""
        self.end_sessions()
        self.direct.database.forget_connections()
        wait_until(lambda: not self.truth.locks(), "an advisory lock stays")
        with self.direct.database.begin() as work:
            work.connection.execute(schema.active.update().values(deadline_ms=0))
        expire(self.direct.database)
        assert self.truth.one("select count(*) from xq_active") == 0
        prune(self.direct.database)
        assert take_snapshot(self.direct.database).excluded == ()
        for table in ("staged_key", "staged_cell", "staged_entry", "invalid", "active"):
            assert self.truth.one(f"select count(*) from xq_{table}") == 0, table

    def sizes(self, kind: str, *, timeout: float | None = None, warm: bool = True) -> dict[Direction, int]:
        """Count the bytes of an exchange; a few more or less depend on the key's bucket."""
        self.end_sessions()
        assert self.attempt(kind, None, timeout=timeout, warm=warm).told == (
            "committed" if kind in COMMITS else "refused"
        )
        return {direction: self.proxy.counted(direction) for direction in DIRECTIONS}


Arm = Callable[[], object]


def write_only(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        arm()


def short(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout) as tx:
        attempt.request = tx.request
        assert tx.table("t").get(attempt.name, "n") is None
        fill(tx, attempt.name)
        arm()


def long(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout, long=True) as tx:
        attempt.request = tx.request
        assert tx.id
        fill(tx, attempt.name)
        arm()


def with_token(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout, idempotency_key=attempt.name) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        arm()


def run(store: Store, attempt: Attempt, arm: Arm) -> None:
    calls = 0

    def function(tx: TransactionContext) -> str:
        nonlocal calls
        calls += 1
        attempt.request = tx.request
        fill(tx, attempt.name)
        if calls == 1:
            arm()
        return attempt.name

    assert store.run(function, idempotency_key=attempt.name, timeout=attempt.timeout) == attempt.name


def start(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout) as tx:
        attempt.request = tx.request
        arm()
        assert tx.id
        raise GivenUp


def start_long(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout, long=True) as tx:
        attempt.request = tx.request
        arm()
        assert tx.id
        raise GivenUp


def read(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        assert tx.id
        arm()
        assert tx.table("t").get("other", "n") is None
        assert tx.table("t").get_many([("another", "n")]) == {}
        assert list(tx.table("t").scan(b"x", b"y")) == []
        raise GivenUp


def stage(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout, long=True) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        assert tx.id
        arm()
        tx.flush()
        raise GivenUp


def abort(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        assert tx.id
        arm()
        raise GivenUp


def abort_long(store: Store, attempt: Attempt, arm: Arm) -> None:
    with store.transaction(timeout=attempt.timeout, long=True) as tx:
        attempt.request = tx.request
        fill(tx, attempt.name)
        tx.flush()
        arm()
        raise GivenUp


COMMITS = {work.__name__: work for work in (write_only, short, long, with_token, run)}
OTHERS = {work.__name__: work for work in (start, start_long, read, stage, abort, abort_long)}
KINDS = COMMITS | OTHERS
