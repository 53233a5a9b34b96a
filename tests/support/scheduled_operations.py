"""What happens to a queue at the same time, for :mod:`tests.support.schedules`, and what must be true afterwards.

An :class:`Operation` has two parts: ``prepare`` fills the store before anything runs, ``act`` is what a schedule cuts
into pieces. Each operation has a store object of its own, as a process of its own would have. None of them waits: what
is locked is skipped or refused, and those errors are answers (:data:`ANSWERS`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.contexts import begin, opened_by
from tests.support.scheduled_stores import Stand
from tests.support.schedules import Explorer, Plan, Run, printed
from tests.support.switch_points import FencedPointSink, PointSink

from export_queue import (
    Candidates,
    CommitRefused,
    ConflictError,
    Delete,
    DrainReport,
    EntriesNotSettled,
    EntriesWait,
    ExportQueueError,
    HasSubscriptions,
    InvalidArgument,
    LayoutClosed,
    LeaseLost,
    LockNotAvailable,
    Owner,
    Put,
    QueueBusy,
    RegistrationLost,
    Retry,
    SegmentLost,
    SegmentUnavailable,
    Store,
    TransactionsInProgress,
    UnknownQueue,
    drain,
)
from export_queue.core.locks import Area, acquire
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.queue import subscribe, unsubscribe
from export_queue.core.segments import compact, fall_back, vacuum_segments
from export_queue.core.store import schema
from export_queue.core.store.portable import prefix_of
from export_queue.core.transactions import OpenTransaction

AT_ONCE = Retry(attempts=1)
QUEUE = "orders"
ANSWERS = (
    CommitRefused,
    ConflictError,
    EntriesNotSettled,
    EntriesWait,
    LayoutClosed,
    LeaseLost,
    LockNotAvailable,
    QueueBusy,
    RegistrationLost,
    TransactionsInProgress,
)
"""Errors that an operation may meet beside any other."""
LEFT = (
    schema.load,
    schema.segment,
    schema.segment_reader,
    schema.segment_done,
    schema.compacted,
    schema.hidden_segment,
    schema.entry,
    schema.staged_entry,
)
"""Tables in which nothing is left once all is drained and cleaned up."""
Value = bytes | None


@dataclass
class Scene:
    """The store, the sinks and what was committed, in one run."""

    subscriptions: tuple[str, ...] = ()
    guard: str = "seq"
    """What keeps the sinks from taking older entries."""
    sinks: dict[str, PointSink | FencedPointSink] = field(default_factory=dict)
    committed: dict[str, list[tuple[int, Value]]] = field(default_factory=dict)
    """By key what transactions have said of it, with their ids."""
    lost_files: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """Keys that the exporter refuses, for now."""
    is_reader_removed: bool = False
    given_up: int = 0
    """Rows that were merged into a file that is lost."""
    has_state: bool = False
    """Whether the queue remembers its state."""
    seen: list[tuple[str, int, Value]] = field(default_factory=list)
    """What the state had: key, the id that was committed last before the reading began, and the value."""
    mirrors: list[tuple[int, dict[str, bytes] | int]] = field(default_factory=list)
    """Ids of transactions that made the state equal to records, or to the state after the transaction with an id."""

    def copy(self) -> Scene:
        """Return a scene that may be changed, as this one is now."""
        return Scene(
            self.subscriptions,
            self.guard,
            {name: sink.copy() for name, sink in self.sinks.items()},
            {key: list(said) for key, said in self.committed.items()},
            list(self.lost_files),
            set(self.refused),
            has_state=self.has_state,
        )

    @property
    def readers(self) -> list[str]:
        """The ids of the queue's readers."""
        return [f"{QUEUE}/{name}" for name in self.subscriptions] or [QUEUE]

    def sink(self, reader: str) -> PointSink | FencedPointSink:
        """Return a reader's sink."""
        return self.sinks.setdefault(reader, PointSink() if self.guard == "seq" else FencedPointSink())

    def commit(self, store: Store, entries: dict[str, Value], *, table: dict[str, Value] | None = None) -> None:
        """Commit some entries: a short transaction, or a long one that adds a table first.

        :param entries: what is added as rows.
        :param table: what is added as a table before.
        """
        _ = store.identity
        tx = begin(store, kind="short" if table is None else "long")
        try:
            queue = tx.queue(QUEUE)
            for key, value in ((table or {}) | entries).items():
                tx.table("source").set(key, "value", b"gone" if value is None else b"=" + value)
            if table is not None:
                queue.add_batch(pa.table({"key": list(table), "value": pa.array(list(table.values()), pa.binary())}))
            for key, value in entries.items():
                queue.add(key, value, replace=True)
            number = opened_by(tx).commit()
        except BaseException as error:
            opened_by(tx).abort(error)
            raise
        assert number is not None
        for key, value in ((table or {}) | entries).items():
            self.committed.setdefault(key, []).append((number, value))

    def drain(self, store: Store, reader: str, **options: Any) -> DrainReport:
        """Drain a reader, without waiting for anybody."""
        given: dict[str, Any] = {"if_locked": "skip", "lock_timeout": 0.0, "chunk_rows": 100, "retry": AT_ONCE}
        given["on_error"] = "dead_letter" if self.guard == "seq" else "fail"
        return drain(store, reader, self.sink(reader), sink_name="sink", exporter=self._export, **(given | options))

    def _export(self, entry: Any) -> Iterator[Put | Delete]:
        if entry.key in self.refused:
            raise ValueError("a key that is refused")
        yield Delete(QUEUE, entry.key) if entry.value is None else Put(QUEUE, entry.key, entry.value)

    def expected(self) -> dict[str, bytes]:
        """Return what a sink must hold in the end."""
        return _state_of(self.entries())

    def entries(self) -> list[tuple[int, str, Value]]:
        """Return all that was committed, with what mirrors have added: id, key and value, by id."""
        said = sorted(
            [(number, {key: value}) for key, all_said in self.committed.items() for number, value in all_said]
            + self.mirrors,
            key=lambda one: one[0],
        )
        entries: list[tuple[int, str, Value]] = []
        for number, what in said:
            if (number, what) not in self.mirrors:
                entries += [(number, key, value) for key, value in what.items()]
                continue
            before = _state_of(entries)
            wanted = _state_of(one for one in entries if one[0] <= what) if isinstance(what, int) else what
            changed = {key for key in before.keys() | wanted.keys() if before.get(key) != wanted.get(key)}
            entries += [(number, key, wanted.get(key)) for key in sorted(changed)]
        return entries


def _state_of(entries: Iterable[tuple[int, str, Value]]) -> dict[str, bytes]:
    """Return the newest value of each key that is not deleted."""
    newest = {key: value for _, key, value in sorted(entries, key=lambda one: one[0])}
    return {key: value for key, value in newest.items() if value is not None}


def _nothing(scene: Scene, store: Store) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """Something that is done to a queue."""

    name: str
    act: Callable[[Scene, Store], None]
    prepare: Callable[[Scene, Store], None] = _nothing
    answers: tuple[type[ExportQueueError], ...] = ()
    """Errors that this operation, and others next to it, may meet."""
    subscriptions: tuple[str, ...] = ()
    """Subscriptions that the queue has at the start."""
    needs_state: bool = False


def load_value(scene: Scene, store: Store) -> None:
    """Commit a long transaction that adds a key in a table, then as a row."""
    scene.commit(store, {"k": b"row"}, table={"k": b"table", "t": b"table"})


def load_gone(scene: Scene, store: Store) -> None:
    """Commit a long transaction that adds a key in a table, then says by a row that the record is gone."""
    scene.commit(store, {"k": None}, table={"k": b"table", "t": b"table"})


def short(scene: Scene, store: Store) -> None:
    """Commit a short transaction."""
    scene.commit(store, {"k": b"short", "s": b"short"})


def abort(scene: Scene, store: Store) -> None:
    """Abort a long transaction that has added a table and a row."""
    with contextlib.suppress(ZeroDivisionError), store.transaction(long=True) as tx:
        tx.queue(QUEUE).add_batch(pa.table({"key": ["k", "never"], "value": pa.array([b"never"] * 2, pa.binary())}))
        tx.queue(QUEUE).add("k", b"never", replace=True)
        tx.flush()
        raise ZeroDivisionError


def run_drain(scene: Scene, store: Store) -> None:
    """Drain what is free."""
    scene.drain(store, scene.readers[0], owner=Owner("drain", "1"))


def urgent_drain(scene: Scene, store: Store) -> None:
    """Drain all, and revoke the locks of compactions."""
    scene.drain(store, scene.readers[0], owner=Owner("urgent", "1"), if_locked="wait")


def take_over(scene: Scene, store: Store) -> None:
    """Let all leases run out, and drain as a newer attempt of a drain."""
    _expire(store)
    scene.drain(store, scene.readers[0], owner=Owner("drain", "2"))


def hold_dead(scene: Scene, store: Store) -> None:
    """Leave the locks of a drain that is dead."""
    queue = store.queue(scene.readers[0])
    acquire(store.database, queue, [Area(0, queue.buckets)], owner=Owner("dead", "1"), lease_seconds=600.0)


def some_files(scene: Scene, store: Store) -> None:
    """Commit two small files and a row."""
    for n in range(2):
        scene.commit(store, {}, table={"a": b"file %d" % n, f"f{n}": b"file"})
    scene.commit(store, {"a": b"row"})


def merge(scene: Scene, store: Store) -> None:
    """Merge small files and rows."""
    compact(store.database, scene.readers[0], wanted=Candidates(least=2))


def older_layout(scene: Scene, store: Store) -> None:
    """Leave a file and a row in a layout that is not the queue's any more."""
    scene.commit(store, {"m": b"row"}, table={"m": b"table", "n": b"table"})
    store.alter_queue(QUEUE, buckets=4, buckets_per_range=2, guard=scene.guard)


def move(scene: Scene, store: Store) -> None:
    """Move what waits in older layouts into the current one."""
    compact(store.database, scene.readers[0], older_layouts=True)


def lost_file(scene: Scene, store: Store) -> None:
    """Merge two files, and lose the merged one."""
    for n in range(2):
        scene.commit(store, {}, table={"a": b"file %d" % n, f"f{n}": b"file"})
    report = compact(store.database, scene.readers[0], wanted=Candidates(least=2))
    for file in report.files:
        Path(file).unlink()
        scene.lost_files.append(file)


def return_to_inputs(scene: Scene, store: Store) -> None:
    """Fall back on what a lost file was merged of."""
    _fall_back(scene, store, scene.readers[0])


def _fall_back(scene: Scene, store: Store, reader: str) -> None:
    for file in scene.lost_files:
        report = fall_back(store.database, store.queue(reader), file, who="anna", wait_seconds=0.0)
        scene.given_up += report.given_up


def clean_up(scene: Scene, store: Store) -> None:
    """Clean up all there is; files go at once when nothing refers to them."""
    maintain(store.database, patience=Patience(files=0.0))


def end_transactions(scene: Scene, store: Store) -> None:
    """Let the deadlines of all transactions pass, and clean up."""
    with store.database.begin() as work:
        work.connection.execute(schema.active.update().values(deadline_ms=0))
    clean_up(scene, store)


def alter(scene: Scene, store: Store) -> None:
    """Give the queue other buckets."""
    store.alter_queue(QUEUE, buckets=6, buckets_per_range=2, guard=scene.guard)


def some_dead(scene: Scene, store: Store) -> None:
    """Leave a dead letter."""
    scene.commit(store, {"dead": b"letter"})
    scene.refused.add("dead")
    scene.drain(store, scene.readers[0], max_dead=10)
    scene.refused.clear()


def retry_dead(scene: Scene, store: Store) -> None:
    """Put dead letters back."""
    store.dead_letters.retry(scene.readers[0], lock_timeout=0.0, who="anna")


def first_subscription(scene: Scene, store: Store) -> None:
    """Give a queue without subscriptions its first one."""
    subscribe(store.database, QUEUE, "cache", retry=AT_ONCE)
    scene.subscriptions = ("cache",)
    _first_load(scene, store, f"{QUEUE}/cache")


def another_subscription(scene: Scene, store: Store) -> None:
    """Subscribe another reader, and load it from the source."""
    subscribe(store.database, QUEUE, "search", retry=AT_ONCE)
    scene.subscriptions = (*scene.subscriptions, "search")
    _first_load(scene, store, f"{QUEUE}/search")


def files_of_state(scene: Scene, store: Store) -> None:
    """Leave files for the state, one of them merged, with a row on top."""
    some_files(scene, store)
    merge_state(scene, store)
    scene.commit(store, {"k": None, "f1": None}, table={"a": b"newer", "g": b"file"})


def subscription_from_state(scene: Scene, store: Store) -> None:
    """Subscribe another reader, and load it from the state, whose files it shares."""
    subscribe(store.database, QUEUE, "stateful", retry=AT_ONCE)
    scene.subscriptions = (*scene.subscriptions, "stateful")
    store.first_load(f"{QUEUE}/stateful", source="state", settle_timeout=0.001)


def _first_load(scene: Scene, store: Store, reader: str) -> None:
    with store.first_load(reader, settle_timeout=0.001) as load:
        for row, _, value in load.table("source").scan():
            if value != b"gone":
                load.add(row.decode(), value[1:])


def remove_subscription(scene: Scene, store: Store) -> None:
    """Remove a subscription, with what waits for it."""
    unsubscribe(store.database, QUEUE, "doomed", discard=True, who="anna", retry=AT_ONCE)
    scene.subscriptions = tuple(name for name in scene.subscriptions if name != "doomed")
    scene.is_reader_removed = True


def mirror(scene: Scene, store: Store) -> None:
    """Make the state equal to a data set: one record is changed, one is new, one is the same, others are gone."""
    data = {"k": b"mirror", "n": b"mirror", "o": b"old"}
    _ = store.identity
    tx = begin(store, kind="long")
    try:
        tx.queue(QUEUE).mirror(list(data.items()), max_deletes=1.0, settle_timeout=0.001)
        number = opened_by(tx).commit()
    except BaseException as error:
        opened_by(tx).abort(error)
        raise
    assert number is not None
    scene.mirrors.append((number, data))


def roll_back(scene: Scene, store: Store) -> None:
    """Bring back the state after the first transaction."""
    first = min(number for said in scene.committed.values() for number, _ in said)
    ended = []
    commit, own = OpenTransaction.commit, threading.get_ident()

    def noted(opened: OpenTransaction) -> int | None:
        number = commit(opened)
        if threading.get_ident() == own:
            ended.append(number)
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenTransaction, "commit", noted)
        store.state(QUEUE).rollback(to=first, settle_timeout=0.001)
    scene.mirrors.append((ended[0], first))


def merge_state(scene: Scene, store: Store) -> None:
    """Merge files and rows of the state."""
    compact(store.database, store.state(QUEUE).id, wanted=Candidates(least=2))


def move_state(scene: Scene, store: Store) -> None:
    """Move what the state has in older layouts into the current one."""
    compact(store.database, store.state(QUEUE).id, older_layouts=True)


def get(scene: Scene, store: Store) -> None:
    """Read keys of the state, one by one: in a file and a row, in files, deleted in a file's place, and in a row."""
    state = store.state(QUEUE)
    for key in ("a", "f1", "k", "m"):
        last = max((number for number, of, _ in scene.entries() if of == key), default=0)
        scene.seen.append((key, last, state.get(key)))


def _expire(store: Store) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.lock.update().values(lease_ms=0))


OPERATIONS = {
    one.name: one
    for one in (
        Operation("load_value", load_value),
        Operation("load_gone", load_gone),
        Operation("short", short),
        Operation("abort", abort),
        Operation("drain", run_drain),
        Operation("urgent_drain", urgent_drain),
        Operation("compact", merge, some_files),
        Operation("move", move, older_layout),
        Operation("fall_back", return_to_inputs, lost_file, (InvalidArgument, SegmentLost)),
        Operation("maintain", clean_up, some_files),
        Operation("end_transactions", end_transactions, answers=(SegmentLost, SegmentUnavailable)),  # no grace time
        Operation("alter", alter, answers=(InvalidArgument,)),
        Operation("retry", retry_dead, some_dead),
        Operation("take_over", take_over, hold_dead),
        Operation("subscribe_first", first_subscription, answers=(HasSubscriptions,)),
        Operation("subscribe", another_subscription, subscriptions=("cache",)),
        Operation("load_state", subscription_from_state, files_of_state, subscriptions=("cache",), needs_state=True),
        Operation("unsubscribe", remove_subscription, answers=(UnknownQueue,), subscriptions=("doomed", "cache")),
        Operation("mirror", mirror, needs_state=True),
        Operation("roll_back", roll_back, needs_state=True),
        Operation("compact_state", merge_state, some_files, needs_state=True),
        Operation("move_state", move_state, older_layout, needs_state=True),
        Operation("get", get, files_of_state, needs_state=True),
    )
}


class Theatre:
    """Runs schedules of some operations on one store.

    :param stand: the store.
    :param names: the operations, keys of ``OPERATIONS``; a 2 at the end stands for the same operation once more.
    :param guard: what keeps sinks from taking older entries.
    :param every_statement: whether PostgreSQL may switch inside of SQL transactions, too.
    """

    def __init__(
        self, stand: Stand, names: Sequence[str], *, guard: str = "seq", every_statement: bool = False
    ) -> None:
        self.stand, self.names = stand, list(names)
        self._variant = "+fence" * (guard == "fence") + "+statements" * every_statement
        self.operations = [OPERATIONS[name.removesuffix("2")] for name in names]
        subscriptions = max((one.subscriptions for one in self.operations), key=len)
        self._first = Scene(subscriptions, guard, has_state=any(one.needs_state for one in self.operations))
        stand.build(self._fill)
        self.points = stand.points(every_statement=every_statement)

    def _fill(self, store: Store) -> None:
        scene = self._first
        options: dict[str, Any] = {"subscriptions": list(scene.subscriptions)} if scene.subscriptions else {}
        options |= {"state": True} if scene.has_state else {}
        store.configure_queue(QUEUE, buckets=2, buckets_per_range=2, value="bytes", **options)
        store.configure_table("source", conflict="none")
        scene.commit(store, {"k": b"old", "o": b"old"})
        for reader in scene.readers:
            scene.drain(store, reader)
        prepares = {operation.prepare for operation in self.operations}
        for prepare in sorted(prepares, key=lambda one: (one is lost_file, one.__name__)):  # no drain may follow a loss
            prepare(scene, store)
        if "subscribe_first" not in self.names:
            scene.commit(store, dict.fromkeys("bwz", b"waits"))  # around the keys of others

    def run(self, plan: Plan) -> Run:
        """Put the store back, run the operations by a plan, and check the result."""
        self.stand.put_back()
        scene = self._first.copy()
        stores = [self.stand.open(number + 1) for number in range(len(self.names))]
        for store in stores:
            _ = store.identity
        parts = zip(self.names, self.operations, stores, strict=True)
        works = {name: self._work(one, scene, store) for name, one, store in parts}
        run = Run(works, plan)
        with self.points.placed():
            run.go()
        wrong = [f"{name} raised {type(error).__name__}: {error}" for name, error in run.errors.items()]
        audience = Audience(scene, self.stand.open(0), self.stand.segments)
        try:
            wrong += audience.judge()
        except ExportQueueError as error:
            wrong.append(f"the last drain raised {type(error).__name__}: {error}")
        run.outcome = audience.outcome
        if wrong:
            again = f"{self.stand.name}{self._variant} {' '.join(self.names)} | {printed(run.plan)}"
            run.failure = "\n".join(("; ".join(wrong), f"repeat it with EXPORT_QUEUE_SCHEDULE='{again}'", run.told()))
        return run

    def explorer(self, **options: Any) -> Explorer:
        """Return what runs all schedules of the operations."""
        return Explorer(self.names, self.run, **options)

    def _work(self, operation: Operation, scene: Scene, store: Store) -> Callable[[], None]:
        allowed = [*ANSWERS, *(error for one in self.operations for error in one.answers)]

        def work() -> None:
            with contextlib.suppress(*allowed):
                operation.act(scene, store)

        return work


class Audience:
    """Judges what is left of a run.

    :param scene: what has happened.
    :param store: the store.
    :param folder: the folder of its files.
    """

    def __init__(self, scene: Scene, store: Store, folder: Path) -> None:
        self.scene, self.store, self.folder = scene, store, folder
        self.wrong: list[str] = []
        self.outcome = ""
        """What distinguishes the result from others; equal schedules have equal ones."""

    def judge(self) -> list[str]:
        """End all that is open, drain all, and compare; returns what is wrong."""
        scene, store = self.scene, self.store
        _expire(store)
        self._look_at_files()
        for reader in scene.readers:
            self._drain_all(reader)
        reports = self._reports()
        for report in reports:
            produced = report.written + report.stale + report.collapsed + report.rejected
            self._expect(report.read, report.acknowledged + report.dead + report.left, f"read: {report.line()}")
            self._expect(report.produced, produced, f"produced: {report.line()}")
        entries = len(scene.entries()) - scene.given_up
        for reader in scene.readers:
            if self.store.queue(reader).first_load is None:  # it got all that was ever committed
                acknowledged = sum(report.acknowledged for report in reports if report.queue == reader)
                self._expect(acknowledged, entries, f"{reader}: entries, each of which is acknowledged once")
        records = {name: sorted(sink.held().items()) for name, sink in scene.sinks.items()}
        said = sorted((one.queue, one.read, one.acknowledged, one.dead, one.left, one.stale) for one in reports)
        self.outcome = f"{said} {records}"
        self._clean_up()
        if scene.has_state:
            self._look_at_state()
        self._look_at_what_was_seen()
        return self.wrong

    def _reports(self) -> list[DrainReport]:
        """Return the stored reports, those of drains that failed too."""
        return [DrainReport.from_dict(one) for one in self.store.reports(limit=1000)]

    def _expect(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            self.wrong.append(f"{what}: expected {expected}, found {found}")

    def _look_at_files(self) -> None:
        """No row without a file."""
        missing = {file for file in self.store.bulk_files() if not Path(file).exists()}
        self._expect(missing - set(self.scene.lost_files), set(), "files that rows refer to and that are gone")

    def _drain_all(self, reader: str) -> None:
        scene, store = self.scene, self.store
        if "/" in reader:
            with contextlib.suppress(InvalidArgument):  # it was loaded
                if reader.endswith("/stateful"):
                    store.first_load(reader, source="state", settle_timeout=0.001)
                _first_load(scene, store, reader)
        with contextlib.suppress(InvalidArgument):  # it was done
            _fall_back(scene, store, reader)
        store.dead_letters.retry(reader, lock_timeout=0.0, who="anna")
        waiting = sum(unit.entries for unit in store.backlog(reader))
        peeked = len(store.peek(reader, limit=1000))
        report = scene.drain(store, reader, if_locked="fail")
        if not reader.endswith("/stateful"):  # an entry in two files, or in a file and as a row, is read once
            self._expect(waiting, report.read, f"{reader}: backlog, compared with what the last drain read")
        self._expect(peeked, report.read, f"{reader}: peek, compared with what the last drain read")
        self._expect(store.backlog(reader), [], f"{reader}: backlog after the last drain")
        found = scene.sink(reader).held()
        expected = scene.expected()
        for key in sorted(found.keys() | expected.keys()):
            self._expect(found.get(key), expected.get(key), f"{reader}: record {key!r} of the sink")

    def _clean_up(self) -> None:
        """No file without a row, and no row that nobody needs."""
        if self.scene.is_reader_removed or any(self.store.queue(reader).older for reader in self.scene.readers):
            if self.scene.has_state:
                compact(self.store.database, self.store.state(QUEUE).id, older_layouts=True)
            maintain(self.store.database)  # ids of dead letters keep layouts open up to here
            for reader in self.scene.readers:
                self.scene.drain(self.store, reader)
                self._expect(self.store.queue(reader).older, (), f"{reader}: older layouts that stay open")
        for _ in range(2):
            if self._left():
                kept = {"hidden_seconds": 0.0} if self.scene.has_state else {}  # no drain ends a merged file of a state
                vacuum_segments(self.store.database, grace_seconds=0.0, zombie_seconds=0.0, **kept)
        self._expect(self._left(), [], "files and rows after the last clean-up")

    def _look_at_state(self) -> None:
        """The state is what sinks hold, also after it was trimmed."""
        for when in ("", " after it was trimmed"):
            found, expected = dict(self.store.state(QUEUE).scan()), self.scene.expected()
            self._expect(found, expected, f"the state{when}")
            maintain(self.store.database, patience=Patience(files=0.0))

    def _look_at_what_was_seen(self) -> None:
        """Each reading found what was committed last when it began, or something newer."""
        for key, last, value in self.scene.seen:
            may_be = {said for number, of, said in self.scene.entries() if of == key and number >= last}
            if value not in (may_be or {None}):
                self.wrong.append(f"get of {key!r}: expected one of {may_be or {None}}, found {value!r}")

    def _left(self) -> list[str]:
        if self.scene.has_state:  # has all rows and files that hold a value
            files = {str(path) for path in self.folder.rglob("*") if path.is_file()}
            return sorted(files - set(self.store.bulk_files()))
        left = [str(path) for path in self.folder.rglob("*") if path.is_file()]
        with self.store.database.read() as work:
            prefix = prefix_of(work.connection)
            for table in LEFT:
                rows = work.connection.exec_driver_sql(f"select * from {prefix}{table.name}").all()
                left += [f"{table.name}: {row}" for row in rows]
        return left
