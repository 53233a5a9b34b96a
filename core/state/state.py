"""The state of a queue, as its users read it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from export_queue.core.errors import InvalidArgument, UnknownQueue
from export_queue.core.queue import Queue, Range, find_queue, find_state
from export_queue.core.sources import StateContent, encoded_prefix, require_complete, require_loaded
from export_queue.core.state.mirror import MirrorWriter, add_difference, begun_mirror
from export_queue.core.state.mirror_report import MirrorOptions, MirrorReport
from export_queue.core.state.one_key import LAST_SEQ, latest_value
from export_queue.core.state.state_status import StateStatus, status_of
from export_queue.core.store import Database, queries
from export_queue.core.transactions import lowest_unfinished, take_snapshot

if TYPE_CHECKING:
    import pyarrow as pa


class State:
    """The latest entry of each key of a queue, without deleted keys: what its sinks hold once they are drained.

    Each reading sees one snapshot. ``as_of`` reads a former state: a time, or the id of a transaction, whose changes
    and all with smaller ids are seen. It reaches back as far as the queue's option ``history``.

    :param queue_id: the queue.
    """

    def __init__(self, database: Database, queue_id: str) -> None:
        self._database = database
        self._queue_id = queue_id
        self._known = self._reader()
        """As it was found last. The number may be gone, the codecs never change."""

    @property
    def id(self) -> str:
        """The id of the reader that is the state, for :meth:`Store.first_load`."""
        return self._reader().id

    @property
    def is_complete(self) -> bool:
        """Whether it has what was committed before it began: False until its first load is made."""
        return self._reader().first_load != "missing"

    def status(self) -> StateStatus:
        """Return whether it is complete, its history, and how much of it no compaction has merged yet."""
        return status_of(self._database, self._reader())

    def get(self, key: Any, *, as_of: datetime | int | None = None) -> Any:
        """Return the value of a key; None if the key does not exist.

        :param as_of: a former time or transaction.
        :raises StateIncomplete: the first load of the state is missing.
        :raises SnapshotTooOld: former values of that time are deleted.
        :raises SegmentLost: a file that may have the value is missing or damaged.
        """
        encoded = self._known.encode_key(key)
        cut = LAST_SEQ if as_of is None else _cut(as_of, LAST_SEQ)
        try:
            value = latest_value(self._database, self._known, encoded, cut)
        except UnknownQueue:  # one that was switched on again has another number
            self._known = self._reader()
            value = latest_value(self._database, self._known, encoded, cut)
        return self._known.decode_value(value, key=key)

    def scan(
        self, *, prefix: Any = None, as_of: datetime | int | None = None
    ) -> Generator[tuple[Any, Any], None, None]:
        """Read all keys and values, in the order of the queue's buckets.

        :param prefix: only keys that begin so; text or bytes.
        :param as_of: a former time or transaction.
        :raises StateIncomplete: the first load of the state is missing.
        :raises SnapshotTooOld: former values that the reading needs are deleted, before it or during it.
        :raises SegmentLost: a file of the state is missing or damaged.
        """
        content, start = self._content(as_of), encoded_prefix(prefix)
        for key, value in content.records(start):
            decoded = content.reader.decode_key(key)
            yield decoded, content.reader.decode_value(value, key=decoded)

    def count(self, *, prefix: Any = None, as_of: datetime | int | None = None) -> int:
        """Count the keys. This reads the whole state, as :meth:`scan` does."""
        return sum(1 for _ in self._content(as_of).records(encoded_prefix(prefix)))

    def rollback(
        self,
        *,
        to: datetime | int,
        scope: str | bytes | None = None,
        dry_run: bool = False,
        settle_timeout: float = 60.0,
    ) -> MirrorReport:
        """Bring back a former state: add the difference to it as new entries, in one transaction.

        Sinks follow with the next drain. What was changed since can be brought back in the same way.

        :param to: a former time, or the id of a transaction, whose changes and all with smaller ids are brought back.
        :param scope: only keys that begin so; others are left alone.
        :param dry_run: only report the difference.
        :param settle_timeout: seconds to wait for older transactions to end.
        :returns: the numbers of new, changed, deleted and unchanged records.
        :raises SnapshotTooOld: former values of that time are deleted.
        :raises StateIncomplete: the first load of the state is missing.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        """
        options = MirrorOptions(scope=scope, max_deletes=1.0, dry_run=dry_run, settle_timeout=settle_timeout)
        with self._database.read() as work:
            queue = find_queue(work, self._reader().source)

        def former(content: StateContent) -> Iterator[pa.RecordBatch]:
            cut = _cut(to, content.snapshot.read_pointer)
            _require_loaded(self._database, content.reader, cut)
            everything = Range(0, content.reader.buckets, content.reader.layout)
            return replace(content, cut=cut).record_batches(everything, encoded_prefix(scope))

        with begun_mirror(self._database, queue, scope, dry_run=dry_run) as opened:
            return add_difference(opened, MirrorWriter(opened, queue), former, options)

    def _reader(self) -> Queue:
        with self._database.read() as work:
            return find_state(work, self._queue_id)

    def _content(self, as_of: datetime | int | None) -> StateContent:
        return read_state(self._database, self._queue_id, as_of=as_of)


def read_state(database: Database, queue_id: str, *, as_of: datetime | int | None = None) -> StateContent:
    """Return the state of a queue at a new snapshot.

    :param as_of: a former time or transaction.
    :raises InvalidArgument: the queue has no state.
    :raises StateIncomplete: the first load of the state is missing.
    :raises SnapshotTooOld: as of that time the state did not exist, or its first load had not been made.
    """
    snapshot = take_snapshot(database)
    with database.read() as work:
        reader = find_state(work, queue_id)  # afterwards: it has all layouts of entries in the snapshot
    require_complete(reader, reader.first_load)
    cut = snapshot.read_pointer if as_of is None else _cut(as_of, snapshot.read_pointer)
    settled = lowest_unfinished(database, snapshot, reader.number) - 1
    if as_of is not None:
        _require_loaded(database, reader, cut)
    return StateContent(database, reader, snapshot, cut, settled)


def _require_loaded(database: Database, reader: Queue, cut: int) -> None:
    """Check that a state existed and was complete at a cut."""
    with database.read() as work:
        loaded = queries.exports.first_load_seq(work, reader.number)
    require_loaded(reader, cut, loaded)


def _cut(as_of: datetime | int, newest: int) -> int:
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidArgument(f"as_of: expected a time with a time zone, found {as_of}")
        return max(-1, min(int(as_of.timestamp() * 1000) * 1_000_000, newest))
    if type(as_of) is not int or as_of < 0:
        raise InvalidArgument(f"as_of: expected a time or the id of a transaction, found {as_of!r}")
    return min(as_of, newest)
