"""A queue under everything that may happen to it, beside the plainest model: what was committed, and what has gone.

One process takes all steps, so that the same choices repeat them. Concurrency comes from nesting: another step is taken
in the middle of a drain or a compaction. A process dies by losing all its connections, sometimes right after a commit.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import sqlalchemy as sa
from tests.support.contexts import begin, opened_by
from tests.support.fenced_memory import FencedMemory

from export_queue import (
    ApplyResult,
    Candidates,
    DeadLetterFilter,
    Delete,
    ExportQueueError,
    MemorySink,
    Operations,
    Owner,
    Put,
    Range,
    Retry,
    Store,
    StoreUnavailable,
    TransactionContext,
    drain,
)
from export_queue.core.drain import drain_run, one_drain
from export_queue.core.maintenance import maintain
from export_queue.core.queue import list_dead_letters
from export_queue.core.segments import (
    UnitReader,
    compact,
    fall_back,
    list_segments,
    vacuum_segments,
    waiting_segments,
    watched_steps,
)
from export_queue.core.store import Database, schema
from export_queue.core.transactions import take_snapshot

Entry = tuple[bytes, int]
"""Key and sequence."""
KEYS = [f"key-{n}" for n in range(24)]
LAYOUTS = [(12, 4), (7, 3), (5, 5), (16, 2), (12, 4)]
STEPS = {
    "add": 6,
    "load": 9,
    "begin": 2,
    "stage": 4,
    "end": 3,
    "drain": 6,
    "compact": 8,
    "fall_back": 4,
    "give_up_file": 1,
    "retry_dead": 2,
    "drop_dead": 1,
    "alter": 1,
    "vacuum": 3,
    "maintain": 1,
    "run_out": 2,
    "move": 2,
}
"""Methods of a world, and how often each is taken in the middle of another."""
BRINGS_BACK = ("fall_back", "give_up_file", "drop_dead")
"""Steps that restore, or take away, what another entry stands for; not for queues that keep the latest of each key."""
_SHORTLY = Retry(attempts=3, first_pause=0.001, longest_pause=0.001)
_DEEPEST = 2


class Cut(StoreUnavailable):
    """The process is cut off from the store for good, as if it were dead."""


class Enough(ExportQueueError):
    """The sink takes no more, for now."""


@dataclass(slots=True)
class Open:
    """A transaction in progress, and what it adds."""

    context: TransactionContext
    is_long: bool
    entries: dict[str, bytes | None] = field(default_factory=dict)
    """What counts of each key: what was added last, in whatever form."""


class Ranked(MemorySink):
    """A sink with ranks; the world is told before each batch."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__()
        self._before = before

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch."""
        self._before()
        return super().apply(operations)


class Fenced(FencedMemory):
    """A sink without ranks; it notices a record that goes back."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(before=lambda _: before(), after=self._look)
        self.seqs: dict[tuple[str, bytes], int] = {}

    def _look(self, operations: Operations) -> None:
        for collection, record, seq in zip(operations.collections, operations.ids, operations.seqs, strict=True):
            assert self.seqs.get((collection, record), 0) <= seq, f"went back: {record!r} to {seq}"
            self.seqs[collection, record] = seq

    def ranks(self) -> dict[tuple[str, bytes], int]:
        """Return about the rank of every record."""
        return {record: 2 * seq for record, seq in self.seqs.items()}


@dataclass(slots=True)
class Reader:
    """A reader of the queue: its sink, and what has become of its entries."""

    id: str
    sink: Ranked | Fenced
    given_up: set[Entry] = field(default_factory=set)
    gone: set[Entry] = field(default_factory=set)
    """Entries that neither wait nor are dead letters."""


class World:
    """The store, the model, and the steps.

    :param store: a store without queues.
    :param folder: for the files of loads.
    :param chance: makes all choices inside of steps.
    :param readers: names of subscriptions; none for a queue without.
    :param fenced: whether the sinks have the guard ``fence``.
    :param latest: whether compactions leave the latest entry of each key.
    :param few_keys: whether few keys are added to, so that transactions add each of them several times in each form.
    :param queue_id: the queue, which does not exist yet.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        chance: random.Random,
        readers: tuple[str, ...] = (),
        *,
        fenced: bool = False,
        latest: bool = False,
        few_keys: bool = False,
        queue_id: str = "orders",
    ) -> None:
        self.store, self.chance, self.fenced = store, chance, fenced
        self.latest, self.keys, self.queue_id = latest, KEYS[:5] if few_keys else KEYS, queue_id
        self.folder = folder / "segments"
        store.database.segments = str(self.folder)
        options: dict[str, Any] = {"subscriptions": readers} if readers else {}
        options["coalesce"] = "latest" if latest else None
        store.configure_queue(queue_id, buckets=12, buckets_per_range=4, value="bytes", **options)
        kind = Fenced if fenced else Ranked
        self.readers = [
            Reader(one, kind(self.before_batch)) for one in ([f"{queue_id}/{n}" for n in readers] or [queue_id])
        ]
        self.batches: list[int] = []
        """How many more the drains take that are under way, one in the middle of the other."""
        self.committed: dict[Entry, bytes | None] = {}
        self.open: list[Open] = []
        self.depth = self.drains = self.values = 0
        self.hooks: list[Callable[[str], None]] = []
        self.left_until_cut = -1
        self.trail: list[str] = []
        self.met: dict[str, int] = {}

    # Steps

    def take(self, name: str) -> None:
        """Take a step, and others in the middle of it; errors of the library are answers."""
        self.trail.append("  " * self.depth + name)
        self.depth += 1
        answer = name
        try:
            getattr(self, name)()
        except ExportQueueError as error:
            self.trail.append("  " * self.depth + f"{type(error).__name__}: {error.message[:150]}")
            answer = f"{name} {type(error).__name__}"
        finally:
            self.depth -= 1
        self.met[answer] = self.met.get(answer, 0) + 1

    def can_take(self, name: str) -> bool:
        """Tell whether a step suits the kind of queue."""
        return not self.latest or name not in BRINGS_BACK

    def meanwhile(self) -> None:
        """Perhaps take another step in the middle of one."""
        if self.depth <= _DEEPEST and self.left_until_cut < 0 and self.chance.random() > 0.65:
            names = [name for name in STEPS if self.can_take(name)]
            self.take(*self.chance.choices(names, [STEPS[name] for name in names]))

    def add(self) -> None:
        """Commit some rows."""
        found = Open(begin(self.store), is_long=False)
        self._fill(found, 5)
        self._commit(found)

    def load(self) -> None:
        """Commit some files."""
        found = Open(begin(self.store, kind="long"), is_long=True)
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            if self.chance.random() < 0.7:
                self._add_batch(found)
            else:
                self._fill(found, 3)
        self._commit(found)

    def begin(self) -> None:
        """Begin a transaction that stays open for a while, with an id."""
        if len(self.open) < 3:
            is_long = self.chance.random() < 0.75
            context = begin(self.store, kind="long" if is_long else "short", timeout=3600)
            assert context.id
            self.open.append(Open(context, is_long))

    def stage(self) -> None:
        """Add to a transaction that is open."""
        if self.open:
            found = self.chance.choice(self.open)
            if self.chance.random() < 0.5:
                self._add_batch(found)
            else:
                self._fill(found, 4)
                if found.is_long:
                    found.context.flush()

    def end(self) -> None:
        """Commit or abort a transaction that was open, or let its time run out."""
        if self.open:
            found = self.open.pop(self.chance.randrange(len(self.open)))
            how = self.chance.random()
            if how < 0.7:
                self._commit(found)
            elif how < 0.9:
                opened_by(found.context).abort()
            else:
                self._update(schema.active, schema.active.c.id == found.context.id, deadline_ms=0)

    def drain(self) -> None:
        """Drain, perhaps into a sink that refuses keys or fails; perhaps in a process that dies."""
        reader = self.chance.choice(self.readers)
        ranges: list[Range] | None = None
        if self.chance.random() < 0.4:
            waiting = self.store.waiting_ranges(reader.id)
            ranges = self.chance.sample(waiting, self.chance.randrange(len(waiting) + 1)) or None
        refused = self.chance.sample(self.keys, self.chance.choice([0, 0, 0, 2]))
        last = self.chance.choice([10_000, 1, 2, 4])
        self.drains += 1
        owner = Owner(self.chance.choice(["drain", f"drain-{self.drains}"]), f"{self.drains}")
        self.batches.append(last)
        try:
            with self.dying(owner):
                drain(
                    self.store,
                    reader.id,
                    reader.sink,
                    sink_name="sink",
                    exporter=_exporter(refused),
                    ranges=ranges,
                    chunk_rows=self.chance.choice([1, 2, 4, 100]),
                    if_locked=self.chance.choice(["wait", "skip"]),
                    lock_timeout=0.0,
                    on_error="fail" if self.fenced else "dead_letter",
                    owner=owner,
                    retry=_SHORTLY,
                )
        finally:
            self.batches.pop()

    def before_batch(self) -> None:
        """Perhaps take another step before a drain's batch, or refuse it."""
        if self.batches:
            self.batches[-1] -= 1
            if self.batches[-1] < 0:
                raise Enough("the sink takes no more")
            self.meanwhile()

    def compact(self) -> None:
        """Merge segments; in the middle something else, or an error, or a death."""
        reader = self.chance.choice(self.readers)
        wanted = Candidates(
            least=2,
            small_bytes=self.chance.choice([60, 200, 1 << 20]),
            most_bytes=self.chance.choice([100, 1 << 20]),
            most_inputs=self.chance.choice([2, 3, 100]),
        )
        with self._merging() as owner:
            report = compact(self.store.database, reader.id, wanted=wanted, owner=owner)
            assert report.read == report.written + report.superseded

    def move(self) -> None:
        """Move what waits in older layouts into the current one; in the middle something else, or a death."""
        reader = self.chance.choice(self.readers)
        if not self.store.queue(reader.id).older:
            self.alter()
        wanted = Candidates(most_bytes=self.chance.choice([60, 200, 1 << 20]))
        with self._merging() as owner:
            report = compact(self.store.database, reader.id, older_layouts=True, wanted=wanted, owner=owner)
            assert report.read == report.written + report.superseded

    @contextlib.contextmanager
    def _merging(self) -> Iterator[Owner]:
        """Take steps in the middle of a compaction, and perhaps die; gives the owner of its locks."""
        self.drains += 1
        owner = Owner(self.chance.choice(["compaction", f"compaction-{self.drains}"]), f"{self.drains}")

        def reached(step: str) -> None:
            if step != "publishing":
                self.meanwhile()

        self.hooks.append(reached)
        try:
            with self.dying(owner):
                yield owner
        finally:
            self.hooks.pop()

    def fall_back(self) -> None:
        """Lose a file of merged segments, and fall back on what it was merged of."""
        self._lose_file("compaction-*.parquet", self._fall_back)

    def _fall_back(self, reader: Reader, file: str) -> int:
        queue = self.store.queue(reader.id)
        with self.dying(None):
            return fall_back(self.store.database, queue, file, who="anna", wait_seconds=0.01).given_up

    def give_up_file(self) -> None:
        """Lose a file, and give it up."""
        if self.chance.random() < 0.3:
            self._lose_file("*.parquet", lambda reader, file: self.store.dead_letters.give_up_file(reader.id, file))

    def _lose_file(self, pattern: str, remedy: Callable[[Reader, str], int]) -> None:
        paths = [Path(file) for file in self.store.bulk_files()]
        paths = [path for path in paths if path.match(pattern)] or sorted(self.folder.rglob(pattern))
        if not paths:
            return
        path, reader = self.chance.choice(paths), self.chance.choice(self.readers)
        before, others = self.waits(reader), [one for one in self.readers if one is not reader]
        counts = None
        if not others and pattern != "*.parquet":  # it is read for what was drained, by two readers even
            path = path.rename(path.with_suffix(".aside"))
        name = str(path.with_suffix(".parquet"))
        try:
            counts = remedy(reader, name)
        finally:
            if path.suffix == ".aside":
                path.rename(name)  # where the remedy was refused it is needed; else it does no harm
            after = self.waits(reader)
            lost = set(before) - set(after)
            reader.given_up |= lost
            assert set(after) <= set(before), f"came back: {set(after) - set(before)}"
            assert counts in (None, len(lost)), f"given up: {counts}, lost: {lost}"

    def retry_dead(self) -> None:
        """Put dead letters back."""
        which = (
            DeadLetterFilter(key=self.chance.choice(self.keys)) if self.chance.random() < 0.5 else DeadLetterFilter()
        )
        with self.dying(None):
            self.store.dead_letters.retry(self.chance.choice(self.readers).id, which, lock_timeout=0.0)

    def drop_dead(self) -> None:
        """Drop a dead letter."""
        reader = self.chance.choice(self.readers)
        before = self.dead(reader)
        self.store.dead_letters.drop(reader.id, limit=1)
        reader.given_up |= before - self.dead(reader)

    def alter(self) -> None:
        """Give the queue other buckets."""
        buckets, units = self.chance.choice(LAYOUTS)
        guard: Literal["fence", "seq"] = "fence" if self.fenced else "seq"
        with self.dying(None):
            self.store.alter_queue(self.queue_id, buckets=buckets, buckets_per_range=units, guard=guard)

    def vacuum(self) -> None:
        """Delete files that nobody needs, or only say which."""
        with self.dying(None):
            vacuum_segments(
                self.store.database,
                hidden_seconds=self.chance.choice([-1.0, 86400.0, 86400.0]),
                grace_seconds=self.chance.choice([0.0, 0.0, 86400.0]),
                zombie_seconds=self.chance.choice([0.0, 86400.0]),
                dry_run=self.chance.random() > 0.8,
            )

    def maintain(self) -> None:
        """Clean up all there is."""
        with self.dying(None):
            maintain(self.store.database)

    def run_out(self) -> None:
        """Let the leases of all who are dead run out, or of all, and the time of their transactions."""
        locks = schema.lock
        if self.depth == 1 or self.chance.random() < 0.3:
            self._update(locks, sa.true(), lease_ms=0)
        if self.depth == 1:
            open_ids = [one.context.id for one in self.open]
            self._update(schema.active, schema.active.c.owner.not_in(open_ids), deadline_ms=0)

    # What steps are made of

    def _value(self) -> bytes | None:
        self.values += 1
        return None if self.chance.random() < 0.2 else f"value {self.values}".encode()

    def _keys(self, most: int) -> list[str]:
        return self.chance.sample(self.keys, min(len(self.keys), self.chance.randrange(1, most + 1)))

    def _fill(self, found: Open, most: int) -> None:
        for key in self._keys(most):
            found.entries[key] = value = self._value()
            found.context.queue(self.queue_id).add(key, value, replace=True)

    def _add_batch(self, found: Open) -> None:
        keys = self._keys(8)
        values = [self._value() for _ in keys]
        found.context.queue(self.queue_id).add_batch(pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        found.entries |= dict(zip(keys, values, strict=True))

    def _commit(self, found: Open) -> None:
        if self.chance.random() > 0.7:
            opened_by(found.context).known_keys.clear()  # as if another process committed
        seq = opened_by(found.context).commit()
        assert seq is not None or not found.entries
        self.committed |= {(key.encode(), seq or 0): value for key, value in found.entries.items()}

    def _update(self, table: sa.Table, where: Any, **values: Any) -> None:
        with self.store.database.begin() as work:
            work.connection.execute(table.update().where(where).values(**values))

    @contextlib.contextmanager
    def dying(self, owner: Owner | None) -> Iterator[None]:
        """Perhaps die in the middle of a block; what the dead one holds may run out at once."""
        if self.chance.random() < 0.75:
            yield
            return
        outer, self.left_until_cut = self.left_until_cut, self.chance.randrange(40)
        try:
            yield
        finally:
            self.left_until_cut = outer
            if self.chance.random() < 0.5:
                attempt = sa.true() if owner is None else schema.lock.c.attempt == owner.attempt
                self._update(schema.lock, attempt, lease_ms=0)

    def installed(self, monkeypatch: Any) -> None:
        """Stand between the library and its connections."""
        connect, begin_work = Database.connect, Database.begin
        for room in (drain_run, one_drain):
            monkeypatch.setattr(room, "DRAIN_RETRY", _SHORTLY)
        monkeypatch.setattr(watched_steps, "WATCHERS", [lambda step: self.hooks[-1](step) if self.hooks else None])
        monkeypatch.setattr(Database, "connect", lambda *given, **named: self._cut(connect, *given, **named))
        monkeypatch.setattr(Database, "begin", lambda *given, **named: self._cut(begin_work, *given, **named))

    @contextlib.contextmanager
    def _cut(self, open_one: Callable[..., Any], *given: Any, **named: Any) -> Iterator[Any]:
        if self.left_until_cut == 0:
            raise Cut("cut off")
        with open_one(*given, **named) as opened:
            yield opened
        if self.left_until_cut > 0:
            self.left_until_cut -= 1
            if self.left_until_cut == 0:
                raise Cut("cut off behind it")

    # Looks

    def waits(self, reader: Reader) -> dict[Entry, bytes | None]:
        """Read all that a reader has still to read, in all layouts."""
        queue, seen, found = self.store.queue(reader.id), take_snapshot(self.store.database), {}
        for layout in queue.layouts():
            of, within = queue.laid_out_as(layout), Range(0, layout.buckets, layout.number)
            with self.store.database.read() as work:
                segments = waiting_segments(work, of, seen, within)
                unit = UnitReader(of, seen, within, segments, rows=1000, size=1 << 20)
                while chunk := unit.read(work).entries:
                    for key, seq, value in zip(chunk.keys, chunk.seqs, chunk.values, strict=True):
                        assert (key, seq) not in found, f"waits twice: {key!r} {seq}"
                        found[key, seq] = value
            unit.close()
        return found

    def dead(self, reader: Reader) -> set[Entry]:
        """Read the dead letters of a reader."""
        with self.store.database.read() as work:
            found = list_dead_letters(work, self.store.queue(reader.id), limit=1000)
        return {(one.position.key, one.position.seq) for one in found}

    def check(self) -> None:
        """Compare the store with the model (I3, I6, I7)."""
        for reader in self.readers:
            waits, dead, ranks = self.waits(reader), self.dead(reader), reader.sink.ranks()
            assert waits.items() <= self.committed.items(), f"never committed: {waits.items() - self.committed.items()}"
            assert dead <= set(self.committed)
            assert not dead & set(waits)
            gone = set(self.committed) - set(waits) - dead
            assert gone >= reader.gone, f"{reader.id}: came back: {reader.gone - gone}"
            reader.gone = gone
            stands = self._newest(set(waits) | dead) if self.latest else {}
            for key, seq in gone - reader.given_up:
                reached = max(ranks.get(("orders", key), -1) // 2, stands.get(key, 0))
                assert reached >= seq, f"{reader.id}: lost: {key!r} {seq}"
            counted = sum(unit.entries for unit in self.store.backlog(reader.id))
            assert counted == len(waits), f"{reader.id}: {counted} counted, {len(waits)} wait"
            assert self._lag(reader) == counted
            self._look(reader, waits)

    def _newest(self, entries: Collection[Entry]) -> dict[bytes, int]:
        return dict(sorted(entries))

    def _lag(self, reader: Reader) -> int:
        schema_name = "" if self.store.database.engine.dialect.name == "sqlite" else "export_queue."
        lag = sa.text(f"select coalesce(sum(entries), 0) from {schema_name}queue_lag where queue = :queue")
        with self.store.database.read() as work:
            return int(work.connection.scalar(lag, {"queue": reader.id}) or 0)

    def _look(self, reader: Reader, waits: dict[Entry, bytes | None]) -> None:
        key = self.chance.choice(self.keys)
        peeked = {(one.position.key, one.position.seq) for one in self.store.peek(reader.id, key=key, limit=1000)}
        assert peeked == {entry for entry in waits if entry[0] == key.encode()}
        story = self.store.why(reader.id, key)
        assert {one.position.seq for one in story.queued} == {seq for _, seq in peeked}
        queue = self.store.queue(reader.id)
        with self.store.database.read() as work:
            for layout in queue.layouts():
                listed = list_segments(work, queue.laid_out_as(layout))
                assert all(one.hidden_by is None or one.state == "hidden" for one in listed), listed

    def finish(self) -> None:
        """End all that is open, drain all, and compare the sinks with the model (I9); nothing is left behind."""
        while self.open:
            self._commit(self.open.pop())
        self.depth, self.left_until_cut = 1, -1
        self.run_out()
        for reader in self.readers:
            self.store.dead_letters.retry(reader.id, lock_timeout=0.0)
        for _ in range(2):  # the ids of the dead keep layouts open up to clean-up
            maintain(self.store.database)
            for reader in self.readers:
                on_error: Literal["fail", "dead_letter"] = "fail" if self.fenced else "dead_letter"
                drain(
                    self.store,
                    reader.id,
                    reader.sink,
                    sink_name="sink",
                    exporter=_exporter(()),
                    lock_timeout=0.0,
                    on_error=on_error,
                )
        for reader in self.readers:
            newest: dict[bytes, tuple[int, bytes | None]] = {}
            for (key, seq), value in self.committed.items():
                if (key, seq) not in reader.given_up:
                    newest[key] = max(newest.get(key, (0, None)), (seq, value))
            expected = {key: value for key, (_, value) in newest.items() if value is not None}
            found = {key.encode() if isinstance(key, str) else key[1]: v for key, v in reader.sink.records().items()}
            # What was given up may have been in the sink before.
            keys = set(expected) | set(found) if not reader.given_up else set(expected)
            wrong = {key: (found.get(key), expected.get(key)) for key in keys if found.get(key) != expected.get(key)}
            risen = {key for key in wrong if reader.sink.ranks()["orders", key] // 2 > newest[key][0]}
            assert set(wrong) <= risen, f"{reader.id}: { ({key: wrong[key] for key in set(wrong) - risen}) }"
            assert self.store.backlog(reader.id) == []
            assert self.store.queue(reader.id).older == ()
        vacuum_segments(self.store.database, grace_seconds=0.0, zombie_seconds=0.0)
        vacuum_segments(self.store.database, grace_seconds=0.0, zombie_seconds=0.0)
        left = [str(path) for path in self.folder.rglob("*") if path.is_file()]
        assert left == []
        tables = (schema.load, schema.segment, schema.segment_reader, schema.segment_done)
        for table in (*tables, schema.compacted, schema.hidden_segment, schema.entry):
            with self.store.database.read() as work:
                rows = work.connection.execute(table.select()).all()
            assert rows == [], table.name


def _exporter(refused: Collection[str]) -> Callable[[Any], Iterator[Put | Delete]]:
    def export(entry: Any) -> Iterator[Put | Delete]:
        if entry.key in refused:
            raise ValueError("a key that is refused")
        if entry.value is None:
            yield Delete("orders", entry.key)
        else:
            yield Put("orders", entry.key, entry.value)

    return export
