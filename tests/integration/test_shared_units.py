"""Drains of units of which somebody of lower priority, as a compaction, holds segments or rows (I6, I7, I10, I13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration.test_follow import following_into
from tests.support import bulk
from tests.support.bulk import many
from tests.support.fenced_memory import FencedMemory
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    DeadLetterFilter,
    DrainReport,
    EntryError,
    LeaseLost,
    LockNotAvailable,
    MemorySink,
    Operations,
    Owner,
    Range,
    Store,
    drain,
)
from export_queue.core.drain import (
    DrainRequest,
    Follower,
    LocalEngine,
    Part,
    drain_ranges,
    load_exporter,
    opened_exporter,
    pipeline,
    run_drain,
    share_out,
    sharing,
)
from export_queue.core.drain.claims import Claims
from export_queue.core.drain.dead_letters import retry_dead_letters
from export_queue.core.locks import (
    COMPACTION_PRIORITY,
    ROWS,
    Area,
    Lease,
    acquire,
    claim,
    claimable,
    claiming,
    hold,
    member,
    release,
    renew,
    standing_locks,
)
from export_queue.core.segments import waiting_segments
from export_queue.core.store.postgresql import calls
from export_queue.core.transactions import take_snapshot

BERT = Owner("bert", "1")
ALL = Range(0, 5)


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A queue of one unit with four segments of ten entries, and ten rows."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=5, buckets_per_range=5, value="bytes")
    for number in range(4):
        load(store, number * 10)
    bulk.put(store, [f"row-{i}" for i in range(10)], b"row")
    return store


def load(store: Store, start: int, count: int = 10) -> None:
    with store.transaction(long=True) as tx:
        bulk.add(tx, store, many(count, start=start))


def segments(store: Store) -> list[str]:
    """The names of the segments that wait."""
    with store.database.read() as work:
        found = waiting_segments(work, store.queue("orders"), take_snapshot(store.database), ALL)
    return [member(one.transaction, one.number) for one in found]


def compaction(store: Store, *members: str, priority: int = COMPACTION_PRIORITY) -> list[Lease]:
    """Hold some of the unit, as a compaction does."""
    areas = [Area(ALL.first, ALL.end, frozenset(members) or None)]
    return acquire(
        store.database, store.queue("orders"), areas, owner=Owner.unique(), priority=priority, lease_seconds=600
    )


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def held_by_drains(store: Store) -> list[frozenset[str] | None]:
    with store.database.read() as work:
        locks = standing_locks(work, store.queue("orders"))
    return [lock.area.members for lock in locks if lock.priority > COMPACTION_PRIORITY]


class Counter(MemorySink):
    """A sink that notes what comes, and how often."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._before = before

    def apply(self, operations: Operations) -> ApplyResult:
        self._before()
        self.seen += [one.decode() for one in operations.ids]
        return super().apply(operations)


def never(seconds: float) -> None:
    raise AssertionError("the drain waits")


def drain_with(store: Store, sink: Any, *, sleep: Callable[[float], None] = never, **options: Any) -> DrainReport:
    """Drain, and do something else where a drain would sleep."""
    request = DrainRequest(**{"queue_id": "orders", "sink_name": "sink", "time_limit": 30.0, **options})
    report = run_drain(
        store, request, nullcontext(LocalEngine(store.database, sink, load_exporter(None), request)), sleep=sleep
    )
    report.check()
    return report


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements that are run in a block."""
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", note)


# -- a sink with ranks -------------------------------------------------------------------------------------------------


def test_a_drain_brings_what_a_compaction_does_not_hold_and_the_next_one_the_rest(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    sink = Counter()
    report = drain_with(orders, sink, if_locked="skip")
    assert (report.read, report.acknowledged, report.left) == (30, 30, 0)
    assert (report.ranges, report.skipped) == ((), (ALL,))
    assert report.oldest_left_seconds > 0
    assert waiting(orders) == 20
    renew(orders.database, leases, lease_seconds=600)

    release(orders.database, leases)
    report = drain_with(orders, sink, if_locked="skip")
    assert (report.read, report.ranges, report.skipped) == (20, (ALL,), ())
    assert waiting(orders) == 0
    assert sorted(sink.seen) == sorted([*many(40), *(f"row-{i}" for i in range(10))]), "each came once"
    assert not held_by_drains(orders)


def test_rows_that_a_compaction_holds_are_left(orders: Store) -> None:
    leases = compaction(orders, ROWS)
    sink = Counter()
    assert drain_with(orders, sink, if_locked="skip").read == 40
    assert sorted(sink.seen) == sorted(many(40))
    release(orders.database, leases)
    assert drain_with(orders, sink).read == 10


def test_a_drain_that_waits_brings_the_rest_once_it_is_free(orders: Store) -> None:
    names = segments(orders)
    held = [compaction(orders, names[0]), compaction(orders, names[1])]
    counts: list[int] = []

    def look(seconds: float) -> None:
        counts.append(waiting(orders))
        assert not held_by_drains(orders), "nothing is held while it waits"
        if len(counts) in (3, 6):
            release(orders.database, held.pop())

    sink = Counter()
    report = drain_with(orders, sink, sleep=look)
    assert counts == [20] * 3 + [10] * 3
    assert (report.read, report.ranges, report.skipped) == (50, (ALL,), ())
    assert len(sink.seen) == 50


def test_a_drain_waits_without_claiming_again_what_it_brought(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[list[Lease]] = []

    def noting(*arguments: Any, **options: Any) -> list[Lease]:
        claims.append(claim(*arguments, **options))
        return claims[-1]

    monkeypatch.setattr("export_queue.core.drain.claims.claim", noting)
    leases = compaction(orders, *segments(orders)[:1])
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            release(orders.database, leases)

    drain_with(orders, Counter(), sleep=look)
    assert looks == 4
    assert [[lease.is_whole for lease in found] for found in claims] == [[False], [True]]


def test_what_is_loaded_later_is_no_part_of_the_promise(orders: Store) -> None:
    """Or a stream of loads would keep a drain from its end, and a compaction from its revocation."""
    leases = compaction(orders, *segments(orders)[:1])
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert waiting(orders) == 10 * looks
        load(orders, 100 * looks)
        if looks == 3:
            release(orders.database, leases)

    drain_with(orders, Counter(), sleep=look)
    assert looks == 3


def test_a_compaction_is_revoked_behind_the_lock_timeout(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    now, looks = 0.0, 0

    def look(seconds: float) -> None:
        nonlocal now, looks
        now, looks = now + 2.0, looks + 1
        renew(orders.database, leases, lease_seconds=600)

    request = DrainRequest(queue_id="orders", sink_name="sink", lock_timeout=5.0)
    sink = Counter()
    engine = nullcontext(LocalEngine(orders.database, sink, load_exporter(None), request))
    report = run_drain(orders, request, engine, sleep=look, clock=lambda: now)
    assert looks == 3
    assert (report.read, report.skipped) == (50, ())
    with pytest.raises(LeaseLost):
        renew(orders.database, leases, lease_seconds=600)
    with pytest.raises(LeaseLost), orders.database.begin() as work:
        hold(work, *leases)


def test_a_drain_that_skips_or_fails_revokes_nothing(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    sink = Counter()
    with pytest.raises(LockNotAvailable):
        drain_with(orders, sink, if_locked="fail", lock_timeout=0.0)
    assert not sink.seen, "a part of a unit counts as held"
    assert drain_with(orders, sink, if_locked="skip", lock_timeout=0.0).read == 30
    renew(orders.database, leases, lease_seconds=600)


@pytest.mark.parametrize("names", ["all", "rows and one"])
def test_a_holder_of_a_drains_priority_keeps_the_unit(orders: Store, names: str) -> None:
    members = [] if names == "all" else [ROWS, segments(orders)[0]]
    compaction(orders, *members, priority=75)
    assert drain_with(orders, Counter(), if_locked="skip").read == 0
    with pytest.raises(LockNotAvailable):
        drain_with(orders, Counter(), lock_timeout=0.0)


def test_a_unit_whose_interval_a_compaction_holds_is_waited_for_as_a_whole(orders: Store) -> None:
    leases = compaction(orders)
    assert drain_with(orders, Counter(), if_locked="skip").read == 0
    release(orders.database, leases)
    assert drain_with(orders, Counter(), if_locked="skip").read == 50


def test_a_drain_reads_no_segment_that_is_published_after_its_claim(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction may lock it, and publish what it becomes, while the drain brings it."""
    taken: list[list[Lease]] = []

    def claim_and_load(*given: Any, **named: Any) -> Any:
        leases = claim_units(*given, **named)
        if held_by_drains(orders) and not taken:
            load(orders, 900)
            taken.append(compaction(orders, segments(orders)[-1]))
        return leases

    claim_units = Claims.claim
    monkeypatch.setattr(Claims, "claim", claim_and_load)
    sink = Counter()
    report = drain_with(orders, sink, if_locked="skip")
    assert taken
    assert (report.read, report.ranges, report.skipped) == (50, (ALL,), ())
    assert not {f"key-{i}" for i in range(900, 910)} & set(sink.seen)
    assert waiting(orders) == 10
    renew(orders.database, taken[0], lease_seconds=600)


def test_an_entry_of_a_held_segment_that_is_poison_waits_with_it(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:1])

    def refuse(entry: Any) -> Any:
        if entry.key in ("key-0", "key-10"):
            raise EntryError("poison")
        return []

    sink = MemorySink()
    assert drain(orders, "orders", sink, sink_name="sink", exporter=refuse, if_locked="skip").dead == 1
    release(orders.database, leases)
    assert drain(orders, "orders", sink, sink_name="sink", exporter=refuse).dead == 1


def test_dead_letters_go_back_beside_a_compaction_of_segments_and_wait_for_one_of_rows(orders: Store) -> None:
    def refuse(entry: Any) -> Any:
        if entry.key.startswith("row"):
            raise EntryError("poison")
        return []

    leases = compaction(orders, *segments(orders)[:1])
    assert drain(orders, "orders", MemorySink(), sink_name="sink", exporter=refuse, if_locked="skip").dead == 10
    queue, which = orders.queue("orders"), DeadLetterFilter()
    assert retry_dead_letters(orders.database, queue, which, who="b", limit=5, lock_timeout=60, sleep=never) == 5
    of_rows = compaction(orders, ROWS)
    waits: list[float] = []
    now = 0.0

    def look(seconds: float) -> None:
        nonlocal now
        now += 4.0
        waits.append(seconds)
        renew(orders.database, of_rows, lease_seconds=600)

    count = retry_dead_letters(
        orders.database, queue, which, who="bert", limit=9, lock_timeout=10.0, sleep=look, clock=lambda: now
    )
    assert (count, len(waits)) == (5, 3)
    with pytest.raises(LeaseLost):
        renew(orders.database, of_rows, lease_seconds=600)
    renew(orders.database, leases, lease_seconds=600)


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_rows", [False, True])
def test_tasks_share_out_and_read_what_is_locked_alone(
    orders: Store, has_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original, heads = pipeline.UnitReader, sharing.row_groups

    def measured(found: Any) -> Any:
        opened.extend(member(one.transaction, one.number) for one in found)
        return heads(found)

    def noting(*arguments: Any, **options: Any) -> Any:
        opened.extend(member(one.transaction, one.number) for one in arguments[3])
        return original(*arguments, **options)

    monkeypatch.setattr(pipeline, "UnitReader", noting)
    monkeypatch.setattr(sharing, "LEAST_WEIGHT", 1)
    monkeypatch.setattr(sharing, "row_groups", measured)
    names = segments(orders)
    compaction(orders, *names[:2], *([] if has_rows else [ROWS]))
    queue = orders.queue("orders")
    leases = claim(orders.database, queue, [ALL], owner=BERT, lease_seconds=600, leaves_out=True)
    load(orders, 900)
    snapshot = take_snapshot(orders.database)
    tasks = share_out(orders.database, queue, leases, snapshot, tasks=3)
    parts: list[Part] = [part for task in tasks for part in task]
    request = DrainRequest(queue_id="orders", sink_name="sink", owner=BERT)
    sink = Counter()
    with opened_exporter(load_exporter(None), request.retry) as exporter:
        reports = drain_ranges(orders.database, queue, parts, snapshot, sink, exporter, request, check=lambda: None)
    assert [report.problem for report in reports] == [None] * len(parts)
    assert sum(report.read for report in reports) == 20 + 10 * has_rows
    assert set(opened) == set(names[2:])


# -- a fenced sink -----------------------------------------------------------------------------------------------------


def test_a_fenced_drain_waits_for_the_whole_unit(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    counts: list[int] = []

    def look(seconds: float) -> None:
        counts.append(waiting(orders))
        if len(counts) == 2:
            release(orders.database, leases)

    sink = FencedMemory()
    assert drain_with(orders, sink, if_locked="skip", on_error="fail").read == 0
    report = drain_with(orders, sink, sleep=look, on_error="fail")
    assert counts == [50, 50]
    assert (report.read, report.skipped) == (50, ())


def test_a_fenced_drain_revokes_a_compaction_behind_the_lock_timeout(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    assert drain_with(orders, FencedMemory(), on_error="fail", lock_timeout=0.0).read == 50
    with pytest.raises(LeaseLost):
        renew(orders.database, leases, lease_seconds=600)


def test_a_fenced_drain_may_read_what_is_published_behind_its_claim(orders: Store) -> None:
    """Else a newer row would be sent before an older entry of its key: nobody else can lock what the drain reads."""
    newer: list[int] = []

    def publish(claims: Any) -> None:
        load(orders, 0)
        newer.append(bulk.put(orders, ["key-0"], b"newer"))
        with pytest.raises(LockNotAvailable):
            compaction(orders, segments(orders)[-1])

    sink = FencedMemory(on_claim=publish)
    assert drain_with(orders, sink, on_error="fail").read == 61
    assert newer
    assert sink.documents[("orders", b"key-0")] == b"newer"


# -- followers ---------------------------------------------------------------------------------------------------------


def test_a_follower_brings_what_is_free_and_goes_idle(orders: Store) -> None:
    leases = compaction(orders, *segments(orders)[:2])
    sink = Counter()
    with following_into(orders, sink, sink_name="sink") as follower:
        wait_until(lambda: len(sink.seen) == 30, "what is free has not come")
        bulk.put(orders, ["late"], b"row")
        load(orders, 200)
        wait_until(lambda: len(sink.seen) == 41, "what has come behind it has not come")
        renew(orders.database, leases, lease_seconds=600)
        release(orders.database, leases)
        wait_until(lambda: len(sink.seen) == 61, "what was held has not come")
        report = follower.stopped()
    assert (report.read, report.acknowledged) == (61, 61)
    assert waiting(orders) == 0


def test_a_follower_has_nothing_to_do_where_only_held_entries_wait(orders: Store) -> None:
    """It looks in growing pauses, and claims nothing: on Spark each claim would be a job."""
    leases = compaction(orders, *segments(orders)[:2])
    pauses: list[float] = []
    drained: list[int] = []

    class Noting(LocalEngine):
        def work_off(self, *arguments: Any) -> Any:
            drained.append(1)
            return super().work_off(*arguments)

    request = DrainRequest(queue_id="orders", sink_name="sink")
    follower = Follower(orders, request, lambda: len(pauses) >= 8)

    class Deaf:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return True

        def close(self) -> None: ...

    follower._listener = Deaf()  # type: ignore[assignment]
    report = follower.run(
        lambda: nullcontext(
            lambda link: Noting(orders.database, MemorySink(), load_exporter(None), link, follower.end_round)
        )
    )
    assert report.read == 30
    assert len(drained) == 1
    assert max(pauses[5:]) > 0.1
    renew(orders.database, leases, lease_seconds=600)


# -- what a claim costs, and what a look says --------------------------------------------------------------------------


def test_thousands_of_units_are_claimed_in_few_statements(store: Store) -> None:
    queue = store.configure_queue("orders", buckets=5000, buckets_per_range=1)
    units = queue.units()
    with statements(store) as one:
        leases = claim(store.database, queue, units[:1], owner=BERT, lease_seconds=60, leaves_out=True)
    release(store.database, leases)
    with statements(store) as found:
        leases = claim(store.database, queue, units, owner=BERT, lease_seconds=60, leaves_out=True)
    assert len(leases) == 5000
    assert len(found) <= len(one)
    assert not [text for text in found if len(text) > 2000], "no list of thousands of buckets is in the text"


@pytest.fixture
def round_trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The statements that go to PostgreSQL."""
    found: list[Any] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    one = calls.one

    def noting(connection: Any, statement: Any, arguments: Any = ()) -> Any:
        found.append(statement)
        return one(connection, statement, arguments)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    monkeypatch.setattr(calls, "one", noting)
    return found


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_claim_of_thousands_of_units_takes_a_few_round_trips(
    store: Store, round_trips: list[Any], leaves_out: bool
) -> None:
    queue = store.configure_queue("orders", buckets=5000, buckets_per_range=1)
    round_trips.clear()
    leases = claim(store.database, queue, queue.units(), owner=BERT, lease_seconds=60, leaves_out=leaves_out)
    assert len(leases) == 5000
    assert len(round_trips) == (3 if leaves_out else 1)
    assert claim(store.database, queue, queue.units(), owner=Owner("anna", "1"), lease_seconds=60) == []


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_lock_that_nobody_has_is_taken_and_given_back_in_two_round_trips(
    store: Store, round_trips: list[Any]
) -> None:
    queue = store.configure_queue("orders", buckets=8, buckets_per_range=2)
    round_trips.clear()
    leases = acquire(store.database, queue, [Area(0, 2, frozenset({ROWS}))], owner=BERT, lease_seconds=60)
    release(store.database, leases)
    assert len(round_trips) == 2


def test_a_claim_has_what_was_published_while_it_was_made(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a unit would pass for drained whose entries have gone on into another segment."""
    at_once = claiming.grant_at_once

    def publish_and_grant(*arguments: Any, **options: Any) -> Any:
        load(orders, 900)
        return at_once(*arguments, **options)

    monkeypatch.setattr(claiming, "grant_at_once", publish_and_grant)
    queue = orders.queue("orders")
    (lease,) = claim(orders.database, queue, [ALL], owner=BERT, lease_seconds=60, leaves_out=True)
    assert lease.members == {ROWS, *segments(orders)}
    assert lease.is_whole


def test_a_look_tells_what_a_drain_would_get(orders: Store) -> None:
    queue, names = orders.queue("orders"), segments(orders)

    def look() -> list[Range]:
        snapshot = take_snapshot(orders.database)
        with orders.database.read() as work:
            return claimable(work, queue, [ALL], snapshot, owner=BERT)

    assert look() == [ALL]
    leases = [compaction(orders, name) for name in (ROWS, *names)]
    assert look() == []
    for one in leases:
        release(orders.database, one)
        assert look() == [ALL]
        acquire(
            orders.database,
            queue,
            [Area(0, 5, one[0].members)],
            owner=Owner("again", "1"),
            priority=25,
            lease_seconds=600,
        )
        assert look() == []
