"""Several drains at once, and drains that die or sleep: who may remove what (I6, I7, I10)."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    Capabilities,
    DrainReport,
    LeaseLost,
    LockNotAvailable,
    MemorySink,
    Operations,
    Owner,
    Sink,
    SinkSpec,
    Store,
    drain,
)
from export_queue.core.drain import DrainRequest, LocalEngine, load_exporter, run_drain
from export_queue.core.locks import claim, holders, release, revoke
from export_queue.core.store import schema

fork = multiprocessing.get_context("fork")


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store


@pytest.fixture
def copies(tmp_path: Path) -> SinkSpec:
    """A sink that processes share."""
    return SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="copies")


def read(copies: SinkSpec) -> dict[str, str]:
    engine = sa.create_engine(copies.options["url"], poolclass=sa.NullPool)
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("orders"):
            return {}
        return {row[0]: row[1] for row in connection.execute(sa.text("select * from orders_live"))}


def add(store: Store, values: dict[str, Any]) -> int:
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue("orders").add(key, value)
        return tx.id


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def all_units_held(store: Store) -> Owner:
    """Somebody claims every unit and does nothing."""
    owner = Owner("somebody", "1")
    queue = store.queue("orders")
    assert len(claim(store.database, queue, queue.units(), owner=owner, lease_seconds=60)) == len(queue.units())
    return owner


class Gate:
    """A sink in front of another: something happens when a batch has come, or is applied."""

    capabilities = Capabilities(batch_rows=1000, batch_bytes=1 << 20)

    def __init__(self, inner: Sink, reach: Callable[[], None], *, applies_first: bool) -> None:
        self.inner, self._reach, self._applies_first = inner, reach, applies_first

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self.inner.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        if not self._applies_first:
            self._reach()
        result = self.inner.apply(operations)
        if self._applies_first:
            self._reach()
        return result

    def close(self) -> None:
        self.inner.close()


class DrainProcess:
    """A drain in a process of its own that stops at a gate, if it has one."""

    def __init__(
        self, url: str, copies: SinkSpec, *, gated: bool = True, applies_first: bool = True, **options: Any
    ) -> None:
        self._here, there = fork.Pipe()
        self.process = fork.Process(
            target=self._run, args=(there, url, copies, gated, applies_first, options), daemon=True
        )
        self.process.start()

    @staticmethod
    def _run(
        pipe: Connection, url: str, copies: SinkSpec, gated: bool, applies_first: bool, options: dict[str, Any]
    ) -> None:
        def reach() -> None:
            if gated:
                pipe.send("at the gate")
                pipe.recv()

        with Store.open(url) as mine:
            gate = Gate(copies.open(), reach, applies_first=applies_first)
            try:
                report = drain(mine, "orders", gate, sink_name=copies.name, **options)
                pipe.send(report.to_dict())
            except Exception as error:
                pipe.send(type(error).__name__)

    def wait_at_gate(self) -> None:
        assert self._here.poll(30), "the drain did not come to the gate"
        assert self._here.recv() == "at the gate"

    def go_on(self) -> None:
        self._here.send("go on")

    def outcome(self) -> Any:
        """Go on at every gate, and return the report or the name of the error."""
        while True:
            assert self._here.poll(60), "the drain hangs"
            told = self._here.recv()
            if told != "at the gate":
                self.process.join(30)
                return told
            self._here.send("go on")

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """Stop the process, and return when all its threads stand still."""
        self.signal(signal.SIGSTOP)
        os.waitpid(self.process.pid or 0, os.WUNTRACED)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join(30)
        assert self.process.exitcode == -signal.SIGKILL


def started(kind: Callable[..., DrainProcess], url: str, copies: SinkSpec) -> Iterator[Callable[..., DrainProcess]]:
    """Give what starts processes, and end them; the body of a fixture."""
    running: list[DrainProcess] = []

    def start(**options: Any) -> DrainProcess:
        running.append(kind(url, copies, **options))
        return running[-1]

    yield start
    for one in running:
        if one.process.is_alive():
            one.process.kill()
        one.process.join(30)


@pytest.fixture
def drain_process(store_url: str, copies: SinkSpec) -> Iterator[Callable[..., DrainProcess]]:
    yield from started(DrainProcess, store_url, copies)


# -- several at once -------------------------------------------------------------------------------------------------


def test_two_drains_of_one_range_at_once_share_the_work_and_both_end_green(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess]
) -> None:
    values = {f"k{i}": i for i in range(400)}
    add(orders, values)
    drains = [drain_process(gated=False) for _ in range(2)]
    reports = [DrainReport.from_dict(one.outcome()) for one in drains]
    assert sum(report.acknowledged for report in reports) == 400
    assert all(report.problem is None for report in reports)
    assert waiting(orders) == 0
    assert read(copies) == {key: str(value) for key, value in values.items()}


def test_a_drain_that_waits_holds_nothing(orders: Store) -> None:
    add(orders, {"a": 1})
    owner = all_units_held(orders)
    with pytest.raises(LockNotAvailable, match="held: .* by somebody"):
        drain(orders, "orders", MemorySink(), lock_timeout=0)
    with orders.database.read() as work:
        found = holders(work, orders.queue("orders"), orders.queue("orders").units())
    assert {holder.owner for holder in found} == {owner}
    assert waiting(orders) == 1


def test_what_others_hold_is_skipped_if_asked(orders: Store) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    queue = orders.queue("orders")
    held = queue.units()[1]
    claim(orders.database, queue, [held], owner=Owner("somebody", "1"), lease_seconds=60)
    report = drain(orders, "orders", MemorySink(), if_locked="skip")
    assert report.skipped == (held,)
    assert [unit.range for unit in orders.backlog("orders")] == [held]
    assert report.acknowledged + waiting(orders) == 100
    assert report.oldest_left_seconds > 0


def test_a_drain_that_is_to_fail_at_held_ranges_does_nothing_at_all(orders: Store) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units()[:1], owner=Owner("somebody", "1"), lease_seconds=60)
    with pytest.raises(LockNotAvailable, match=r"\[0, 5\) by somebody"):
        drain(orders, "orders", MemorySink(), if_locked="fail")
    assert waiting(orders) == 100
    with orders.database.read() as work:
        assert len(holders(work, queue, queue.units())) == 1


def test_ranges_without_work_need_no_lock(orders: Store) -> None:
    all_units_held(orders)
    assert drain(orders, "orders", MemorySink(), if_locked="fail").problem is None


def test_a_drain_is_green_when_another_one_did_the_work(orders: Store) -> None:
    """While we wait, the holder drains and then keeps its locks: nothing is left to wait for."""
    add(orders, {"a": 1})
    holder = all_units_held(orders)
    sink = MemorySink()

    def holder_drains(seconds: float) -> None:
        drain(orders, "orders", sink, sink_name="s", owner=Owner(holder.task, "2"))
        queue = orders.queue("orders")
        claim(orders.database, queue, queue.units(), owner=Owner(holder.task, "3"), lease_seconds=60)

    report = drain_with(orders, sink, sleep=holder_drains)
    assert (report.read, report.problem) == (0, None)
    assert sink.records() == {("orders", b"a"): b"1"}


def test_a_drain_that_waited_brings_what_was_committed_meanwhile(orders: Store) -> None:
    """Its snapshot is taken after its claim."""
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=60)
    sink = MemorySink()

    def commit_and_let_go(seconds: float) -> None:
        add(orders, {"a": 2})
        release(orders.database, leases)

    report = drain_with(orders, sink, sleep=commit_and_let_go)
    assert report.read == 2
    assert sink.records() == {("orders", b"a"): b"2"}


def drain_with(store: Store, sink: Sink, *, sleep: Callable[[float], None], **options: Any) -> DrainReport:
    """Drain, and do something else where a drain would sleep."""
    request = DrainRequest(queue_id="orders", sink_name="s", **options)
    engine = LocalEngine(store.database, sink, load_exporter(None), request)
    return run_drain(store, request, nullcontext(engine), sleep=sleep)


def test_a_retry_takes_over_from_an_older_attempt_of_its_task(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess]
) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    older = drain_process(owner=Owner("dag/run/task", "1"), drain_id="older")
    older.wait_at_gate()
    report = drain(orders, "orders", copies, owner=Owner("dag/run/task", "2"))
    assert report.problem is None
    add(orders, {f"k{i}": "new" for i in range(100)})
    older.go_on()
    assert older.outcome() == "LeaseLost"
    assert waiting(orders) == 100, "the older attempt removed what it has not read"
    (left,) = map(DrainReport.from_dict, orders.reports(drain_id="older"))
    left.check()
    assert left.acknowledged == 0


def test_a_drain_that_begins_to_wait_says_at_once_for_whom(orders: Store, caplog: pytest.LogCaptureFixture) -> None:
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, queue.units()[:1], owner=Owner("somebody", "1"), lease_seconds=60)
    leases += claim(orders.database, queue, queue.units()[1:], owner=Owner("nightly", "1"), lease_seconds=60)
    said: list[str] = []

    def let_go(seconds: float) -> None:
        said.extend(caplog.messages)
        release(orders.database, leases)

    with caplog.at_level("INFO", "export_queue.drain"):
        drain_with(orders, MemorySink(), sleep=let_go)
    (line,) = said
    assert re.fullmatch(
        r"orders → s: waiting for \[.*\) by (somebody|nightly); entries left: 1; the oldest \d+ s old", line
    )


def test_a_drain_that_is_revoked_while_it_waits_brings_nothing(orders: Store) -> None:
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=60)

    def stop_and_let_go(seconds: float) -> None:
        revoke(orders.database, "dag/run/task")
        release(orders.database, leases)

    sink = MemorySink()
    with pytest.raises(LeaseLost, match="this attempt of dag/run/task was revoked"):
        drain_with(orders, sink, sleep=stop_and_let_go, owner=Owner("dag/run/task", "1"))
    assert sink.records() == {}
    assert drain(orders, "orders", sink, sink_name="s", owner=Owner("dag/run/task", "2")).read == 1


def test_a_drain_that_waits_ends_when_a_newer_attempt_of_its_task_begins(orders: Store) -> None:
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=60)
    sink = MemorySink()

    def retry(seconds: float) -> None:
        release(orders.database, leases)
        drain(orders, "orders", sink, sink_name="s", owner=Owner("dag/run/task", "2"))
        add(orders, {"a": 2})

    with pytest.raises(LeaseLost):
        drain_with(orders, sink, sleep=retry, owner=Owner("dag/run/task", "1"))
    assert waiting(orders) == 1


def test_drains_that_end_leave_no_trace_of_their_attempts(orders: Store) -> None:
    drain(orders, "orders", MemorySink())
    with orders.database.read() as work:
        assert work.connection.execute(sa.select(schema.attempt)).all() == []


# -- drains that die or sleep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("applies_first", [False, True], ids=["before-the-sink", "between-sink-and-removal"])
def test_a_killed_drain_removes_nothing_that_it_has_not_acknowledged_and_the_next_one_ends_it(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess], applies_first: bool
) -> None:
    values = {f"k{i}": i for i in range(100)}
    add(orders, values)
    first_range = len(values) - sum(unit.entries for unit in orders.backlog("orders")[1:])
    dying = drain_process(applies_first=applies_first, lease_seconds=3)
    dying.wait_at_gate()
    dying.kill()
    assert waiting(orders) == 100
    assert len(read(copies)) == (first_range if applies_first else 0)
    report = drain(orders, "orders", copies, lock_timeout=30)  # waits for the dead drain's lease to end
    assert (report.acknowledged, report.stale) == (100, first_range if applies_first else 0)
    assert waiting(orders) == 0
    assert read(copies) == {key: str(value) for key, value in values.items()}


def test_a_holder_that_was_stopped_past_its_lease_removes_nothing(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess]
) -> None:
    """SIGSTOP between the sink's acknowledgement and the removal; meanwhile somebody else claims, then SIGCONT."""
    add(orders, {f"k{i}": i for i in range(100)})
    sleeping = drain_process(lease_seconds=3, drain_id="sleeping")
    sleeping.wait_at_gate()
    sleeping.stop()
    queue = orders.queue("orders")
    taken: list[Any] = []

    def claimed() -> bool:
        taken.extend(claim(orders.database, queue, queue.units(), owner=Owner("new", "1"), lease_seconds=60))
        return len(taken) == len(queue.units())

    wait_until(claimed, "the lease of a stopped holder did not end")
    sleeping.go_on()
    sleeping.signal(signal.SIGCONT)
    assert sleeping.outcome() == "LeaseLost"
    assert waiting(orders) == 100
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="sleeping"))
    report.check()
    assert (report.acknowledged, report.left) == (0, report.read)
    with orders.database.read() as work:
        assert {holder.owner.task for holder in holders(work, queue, queue.units())} == {"new"}


def test_a_holder_that_was_stopped_past_its_lease_removes_nothing_even_if_nobody_claimed(
    orders: Store, drain_process: Callable[..., DrainProcess]
) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    sleeping = drain_process(lease_seconds=3)
    sleeping.wait_at_gate()
    sleeping.stop()

    def clock() -> int:
        with orders.database.read() as work:
            return work.now()

    # Longer than a lease, and not until its rows have expired: a renewal that the stop has cut may still extend them.
    stopped = clock()
    wait_until(lambda: clock() > stopped + 3500, "the clock of the store stands still")
    sleeping.go_on()
    sleeping.signal(signal.SIGCONT)
    assert sleeping.outcome() == "LeaseLost"
    assert waiting(orders) == 100


def test_a_revoked_drain_removes_nothing_more(orders: Store) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    sink = Gate(MemorySink(), lambda: revoke(orders.database, "dag/run/task"), applies_first=False)
    with pytest.raises(LeaseLost):
        drain(orders, "orders", sink, owner=Owner("dag/run/task", uuid.uuid4().hex), drain_id="t")
    assert waiting(orders) == 100
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    assert (report.ranges, report.left) == ((), report.read), "a range is done only when its removal has succeeded"


def test_drains_in_threads_of_one_process_do_not_disturb_each_other(orders: Store, copies: SinkSpec) -> None:
    values = {f"k{i}": i for i in range(200)}
    add(orders, values)
    reports: list[DrainReport] = []
    threads = [threading.Thread(target=lambda: reports.append(drain(orders, "orders", copies))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(report.acknowledged for report in reports) == 200
    assert len(reports) == 3
    assert read(copies) == {key: str(value) for key, value in values.items()}
