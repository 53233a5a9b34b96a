"""Replay: keys and values from a source are added to the queue once more, as new entries.

Each part is a long transaction. It draws its id, and waits until every transaction with a smaller id has ended. Only
then it reads its part of the source, which has what all of them have changed. So a value that it adds is the latest
one below its id, and whatever commits later has a greater id and wins (I9, I16). A replay that was interrupted is
repeated from its start: values that were added twice are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

from export_queue.core.errors import ConflictError, InvalidArgument, TransactionsInProgress
from export_queue.core.queue import Queue, Range, bucket, find_queue, join_ranges
from export_queue.core.retry import Retry
from export_queue.core.segments import BulkWriter, load_pyarrow
from export_queue.core.sources import (
    STATE,
    AnySource,
    Content,
    Source,
    encoded_prefix,
    find_source,
    name_of_source,
)
from export_queue.core.store import Database
from export_queue.core.transactions import OpenTransaction

PART = 100_000
PART_BYTES = 64 << 20
"""Entries, and bytes of values, from which a transaction of a replay ends, once a bucket has been read to its end."""
FILES_FROM = 50_000
"""Entries from which a transaction writes files, if the store has a place for them."""
TIMEOUT = 900.0
"""Seconds until the transaction of a part that was killed no longer holds others up."""
_CONFLICTS = Retry(attempts=10, first_pause=0.05, longest_pause=1.0)
_SAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay has added."""

    queue: str
    source: str
    replayed: int = 0
    """Entries with a value."""
    deleted: int = 0
    """Deletes, of keys that were named and that the source says are deleted."""
    absent: int = 0
    """Keys that were named and that the source does not know; nothing was added for them."""
    transactions: int = 0
    samples: list[Any] = field(default_factory=list)
    """Some of the absent keys."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "samples": [k.hex() if isinstance(k, bytes) else k for k in self.samples]}

    def line(self) -> str:
        """Summarise the replay in one line."""
        text = f"{self.queue}: replayed {self.replayed} entries and {self.deleted} deletes from {self.source} in "
        text += f"{self.transactions} transactions"
        if not self.absent:
            return text
        return f"{text}; {self.absent} keys are not in the source: {', '.join(map(repr, self.samples))}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys to replay, encoded. Exactly one of the fields says it."""

    keys: frozenset[bytes] | None = None
    prefix: bytes | None = None
    between: tuple[bytes, bytes] | None = None

    @classmethod
    def of(
        cls,
        queue: Queue,
        *,
        keys: Iterable[Any] | None,
        prefix: str | bytes | None,
        key_range: Sequence[Any] | None,
        all_keys: bool,
    ) -> Selection:
        """Read the arguments of a replay.

        :raises InvalidArgument: none of them is given, or several, or a range that is no pair.
        """
        given = [
            name for name, value in (("keys", keys), ("prefix", prefix), ("key_range", key_range)) if value is not None
        ]
        given += ["all_keys"] if all_keys else []
        if len(given) != 1:
            raise InvalidArgument(
                f"replay of queue {queue.id!r}: expected one of keys, prefix, key_range or all_keys=True, found "
                f"{' and '.join(given) or 'none'}"
            )
        if keys is not None:
            if isinstance(keys, str | bytes):
                raise InvalidArgument(f"keys: expected a list of keys, found {type(keys).__name__}")
            return cls(keys=frozenset(map(queue.encode_key, keys)))
        if prefix is not None:
            return cls(prefix=encoded_prefix(prefix))
        if key_range is not None:
            if isinstance(key_range, str | bytes) or len(key_range) != 2:
                raise InvalidArgument(
                    f"key_range: expected the first key and the one after the last, found {key_range!r}"
                )
            first, end = map(queue.encode_key, key_range)
            return cls(between=(first, end))
        return cls(prefix=b"")

    def has(self, key: bytes) -> bool:
        """Return whether a key is selected."""
        if self.keys is not None:
            return key in self.keys
        if self.prefix is not None:
            return key.startswith(self.prefix)
        assert self.between is not None
        return self.between[0] <= key < self.between[1]

    def ranges(self, queue: Queue) -> Sequence[Range]:
        """Return the buckets of selected keys."""
        if self.keys is None:
            return [Range(0, queue.buckets, queue.layout)]
        found = {bucket(key, queue.buckets) for key in self.keys}
        return join_ranges(Range(at, at + 1, queue.layout) for at in found)

    def name(self) -> str:
        """Return a name that only the same selection has."""
        return sha256(repr((self.keys and sorted(self.keys), self.prefix, self.between)).encode()).hexdigest()[:16]


def replay(
    database: Database,
    queue_id: str,
    *,
    keys: Iterable[Any] | None = None,
    prefix: str | bytes | None = None,
    key_range: Sequence[Any] | None = None,
    all_keys: bool = False,
    source: AnySource = STATE,
    settle_timeout: float = 60.0,
) -> ReplayReport:
    """Add entries from a source once more; see :meth:`export_queue.Store.replay`."""
    with database.read() as work:
        queue = find_queue(work, queue_id)
    if queue.parent is not None:
        raise InvalidArgument(
            f"replay: expected a queue, found subscription {queue_id!r}",
            hint=f"replay {queue.parent!r}, to all its subscriptions; or repair this one: "
            f"export-queue verify {queue_id} --sink … --repair",
        )
    selection = Selection.of(queue, keys=keys, prefix=prefix, key_range=key_range, all_keys=all_keys)
    run = Replay(database, queue, find_source(source), selection, settle_timeout)
    run.replay_all()
    missing = sorted(selection.keys - run.known) if selection.keys is not None else []
    return ReplayReport(
        queue=queue.id,
        source=name_of_source(source),
        replayed=run.replayed,
        deleted=run.deleted,
        absent=len(missing),
        transactions=run.transactions,
        samples=[queue.decode_key(key) for key in missing[:_SAMPLES]],
    )


@dataclass(slots=True)
class Replay:
    """The state of one replay."""

    database: Database
    queue: Queue
    source: Source
    selection: Selection
    settle_timeout: float
    replayed: int = 0
    deleted: int = 0
    transactions: int = 0
    known: set[bytes] = field(default_factory=set)
    """The named keys that the source has."""

    def replay_all(self) -> None:
        """Replay the selected keys; once more if the queue's buckets were altered, since each part has some buckets."""
        layout = None
        while layout != self.queue.layout:
            layout = self.queue.layout
            for part in self.selection.ranges(self.queue):
                self.replay(part)

    def replay(self, within: Range) -> None:
        """Replay the selected keys of some buckets, in transactions of bounded size."""
        first: int | None = within.first
        while first is not None:
            part = partial(self._replay_part, Range(first, within.end, within.layout))
            first = _CONFLICTS.call(part, worth_repeating=lambda error: isinstance(error, ConflictError))

    def _replay_part(self, within: Range) -> int | None:
        """Replay the first buckets of an interval in one transaction, and return the bucket that comes next."""
        mirrors = f"replay {self.queue.number} {self.selection.name()}"
        opened = OpenTransaction(
            self.database,
            kind="long",
            timeout=self.settle_timeout + TIMEOUT,
            queues=[self.queue.id],
            mirrors=mirrors,
        )
        with opened.abort_on_error():
            retry = Retry(attempts=None, seconds=self.settle_timeout, first_pause=0.02)
            opened.settled_below(retry, load=self.queue.number, mirrors=mirrors)
            self._read_queue()
            with self.source.open(self.database, self.queue) as content:
                self._read_queue()  # afterwards: if its buckets are the same, the content has the same
                if content.is_ranked and content.cut < opened.id - 1:
                    raise TransactionsInProgress(
                        f"replay of queue {self.queue.id!r}: expected what was committed below {opened.id}, found a "
                        f"source that ends at {content.cut}"
                    )
                part = Part(BulkWriter(opened, self.queue), self.selection, self._may_write_files())
                following = part.add(content, within)
            if part.replayed or part.deleted:
                opened.commit()
                self.transactions += 1
            else:
                opened.abort()
        self.replayed += part.replayed
        self.deleted += part.deleted
        self.known |= part.known
        return following

    def _read_queue(self) -> None:
        with self.database.read() as work:
            self.queue = find_queue(work, self.queue.id)

    def _may_write_files(self) -> bool:
        return self.database.segments is not None and not self.queue.exclusive


@dataclass(slots=True)
class Part:
    """What one transaction of a replay adds."""

    writer: BulkWriter
    selection: Selection
    may_write_files: bool
    replayed: int = 0
    deleted: int = 0
    known: set[bytes] = field(default_factory=set)
    block: dict[bytes, bytes | None] = field(default_factory=dict)

    def add(self, content: Content, within: Range) -> int | None:
        """Add the selected entries of the first buckets of an interval, and return the bucket that comes next.

        :returns: None after the last bucket.
        """
        read = size = 0
        unfinished: list[tuple[int, bytes, bytes | None]] = []
        """What was read of the last bucket, if there are others before it: it may have more pages."""
        for page in content.pages(within):
            if not len(page):
                continue
            read += len(page)
            size += sum(map(len, filter(None, page.values)))
            last = page.buckets[-1]
            rows = [*unfinished, *zip(page.buckets, page.keys, page.values, strict=True)]
            unfinished = [row for row in rows if row[0] == last] if last > within.first else []
            self._put(rows[: len(rows) - len(unfinished)])
            if read >= PART or size >= PART_BYTES:
                self._flush()
                if unfinished:
                    return last  # the next transaction reads this bucket from its beginning
                read = size = 0
        self._put(unfinished)
        self._flush()
        return None

    def _put(self, rows: Iterable[tuple[int, bytes, bytes | None]]) -> None:
        for _, key, value in rows:
            if not self.selection.has(key):
                continue
            if self.selection.keys is not None:
                self.known.add(key)
            elif value is None:
                continue  # a deleted key is replayed if it was named
            self.replayed += value is not None
            self.deleted += value is None
            self.block[key] = value

    def _flush(self) -> None:
        if self.block:
            pa = load_pyarrow()
            columns = [pa.array(list(column), pa.large_binary()) for column in (self.block, self.block.values())]
            batch = pa.RecordBatch.from_arrays(columns, ["key", "value"])
            self.writer.add_encoded([batch], in_files=self.may_write_files and len(self.block) >= FILES_FROM)
            self.block = {}
