"""The data source ``export_queue``: Spark's own interface for writing DataFrames, and for reading states.

Spark runs each call in its own process. The writer therefore holds plain values only, and each step opens the store:
:meth:`ExportQueueDataSource.writer` begins a long transaction, tasks write files, and ``commit`` stages exactly the
reported files and commits the transaction. ``abort`` may be called while tasks still write, or after a commit whose
process died: it never undoes a commit and deletes no file.

Rows arrive in the user's partitions. A task sorts them in runs of bounded size and writes one file per run.

The mode ``overwrite`` mirrors. ``writer`` then also waits for older transactions. Tasks cannot compare, because Spark
does not distribute rows for such a source: ``commit`` merges the files, compares them with the state, and writes and
stages the difference.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from export_queue.core.client import Store
from export_queue.core.drain import Problem
from export_queue.core.drivers import Driver, flag, seconds, text
from export_queue.core.errors import AlreadyCommitted, ExportQueueError, InvalidArgument, RegistrationLost
from export_queue.core.queue import buckets_of, find_state
from export_queue.core.segments import FileReport, begin_load, write_segments
from export_queue.core.spark.differences import FilePlace, StateSetup, mirror_files, require_layout
from export_queue.core.spark.encoding import key_bytes, raw_keys, row_location, row_without_queue, value_bytes
from export_queue.core.spark.job_commit import check_complete, report_of, stage_files
from export_queue.core.spark.load_tasks import (
    Outcome,
    attempt_name,
    checked_for_repetition,
    collect_files,
    delete_reported,
)
from export_queue.core.spark.state_reader import StateReader, columns_of
from export_queue.core.spark.targets import Target, Targets
from export_queue.core.state import MirrorOptions, name_of_mirror, settled_content
from export_queue.core.store import Database, StoreSpec, identity_of
from export_queue.core.transactions import OpenTransaction, Transaction, outcome

NAME = "export_queue"
RUN_BYTES = 64 << 20
"""Bytes of entries that a task sorts in memory."""
_STORE = {"url": text, "schema": text, "secret": text, "behind_pooler": flag, "segments": text}
_TARGET = {"queue": str, "queue_column": str, "key": str, "value": str}
_REFUSED = {"password": "give a reference to the password: option('secret', 'env:NAME')"}
_OPTIONS = Driver("it", {**_STORE, **_TARGET, "idempotency_key": str, "timeout": seconds}, refuses=_REFUSED)


def _share(value: str) -> float:
    try:
        return int(value) if value.strip().isdigit() else float(value)
    except ValueError:
        raise ValueError("a part from 0 to 1 or a whole number") from None


def _moment(value: str) -> datetime | int:
    if value.strip().isdigit():
        return int(value)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00+01:00, or the id of a transaction") from None


_MIRROR: dict[str, Any] = {"scope": str, "max_deletes": _share, "dry_run": flag, "settle_timeout": seconds}
_MIRROR_OPTIONS = Driver(
    "the mode overwrite",
    {**_STORE, "queue": str, "key": str, "value": str, "timeout": seconds, **_MIRROR},
    refuses=_REFUSED,
)
_READ_OPTIONS = Driver("a reading", {**_STORE, "queue": str, "as_of": _moment}, refuses=_REFUSED)

log = logging.getLogger("export_queue.load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one write.

    :param store: the store, with a reference in place of its password.
    :param target: where rows go.
    :param idempotency_key: name of the unit of work.
    :param timeout: seconds after which the write can no longer commit.
    :param mirror: how to compare the rows with the state; None adds them.
    """

    store: StoreSpec
    target: Target
    idempotency_key: str | None = None
    timeout: float | None = None
    mirror: MirrorOptions | None = None

    @classmethod
    def read(cls, options: Mapping[str, str], *, overwrite: bool = False) -> Settings:
        """Read Spark's options, whose names ignore case and whose values are text.

        :raises InvalidArgument: an option is unknown, missing, or has a value that is not allowed.
        """
        store, found = _store_and_options(options, _MIRROR_OPTIONS if overwrite else _OPTIONS)
        target = Target(**{name: found.pop(name) for name in _TARGET if name in found})
        mirror = {name: found.pop(name) for name in _MIRROR if name in found}
        return cls(store=store, target=target, mirror=MirrorOptions(**mirror) if overwrite else None, **found)


def _store_and_options(options: Mapping[str, str], allowed: Driver) -> tuple[StoreSpec, dict[str, Any]]:
    """Split Spark's options into the store and the others."""
    given = {name.lower(): value for name, value in options.items()}
    found = allowed.read(given, where="format export_queue")
    if "url" not in found:
        raise InvalidArgument("format export_queue: expected the option 'url', the store's URL, found none")
    return StoreSpec(**{name: found.pop(name) for name in _STORE if name in found}), found


class ExportQueueDataSource(DataSource):
    """``df.write.format("export_queue")``, and ``spark.read.format("export_queue")`` for a queue's state."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> t.StructType:
        """Return the columns of a state."""
        store, queue_id, _ = self._reading()
        with contextlib.closing(store.open()) as database, database.read() as work:
            identity_of(database)
            return columns_of(find_state(work, queue_id))

    def reader(self, schema: t.StructType) -> StateReader:
        """Take the snapshot.

        :raises InvalidArgument: an option is wrong, or the queue has no state.
        """
        return StateReader(*self._reading(), schema)

    def _reading(self) -> tuple[StoreSpec, str, datetime | int | None]:
        store, found = _store_and_options(self.options, _READ_OPTIONS)
        if "queue" not in found:
            raise InvalidArgument("format export_queue: expected the option 'queue', found none")
        return store, found["queue"], found.get("as_of")

    def writer(self, schema: t.StructType, overwrite: bool) -> ExportQueueWriter:
        """Check the options and the columns, and begin the transaction.

        :param overwrite: whether to mirror.
        :raises InvalidArgument: an option or a column is wrong.
        """
        settings = Settings.read(self.options, overwrite=overwrite)
        with contextlib.closing(settings.store.open()) as database:
            identity = identity_of(database)
            targets = settings.target.find(database, schema, bulk=True)
            try:
                opened = OpenTransaction(
                    database,
                    kind="long",
                    timeout=settings.timeout,
                    idempotency_key=settings.idempotency_key,
                    queues=settings.target.names,
                    mirrors=None if settings.mirror is None else _mirrored(database, settings),
                )
            except AlreadyCommitted:
                return ExportQueueWriter(settings, targets, identity.store_id)
            with opened.abort_on_error():
                base = begin_load(database, opened)
                state = _settled(opened, settings, targets)
                targets = targets.laid_out_for(database, opened.id)
                if state is not None:
                    require_layout(state.reader, targets)
            value = opened.value.to_json()
            return ExportQueueWriter(settings, targets, identity.store_id, base, value, opened.generation, state)


def _mirrored(database: Database, settings: Settings) -> str:
    assert settings.mirror is not None
    with database.read() as work:
        return name_of_mirror(find_state(work, settings.target.queue or ""), settings.mirror.scope)


def _settled(opened: OpenTransaction, settings: Settings, targets: Targets) -> StateSetup | None:
    """Wait for older transactions, if the write is a mirror; return the state that they have left."""
    if settings.mirror is None:
        return None
    content = settled_content(opened, targets[settings.target.queue or ""], settings.mirror)
    return StateSetup.of(content, settings.store)


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """What a task sends to the commit.

    :param outcome: an :class:`Outcome` as JSON; None if the task had nothing to do.
    """

    outcome: str | None


class ExportQueueWriter(DataSourceArrowWriter):
    """One write. It holds plain values only, because each call runs in another process.

    :param settings: the options.
    :param targets: queues by id.
    :param store_id: the store.
    :param base: URL of the folder of all segments.
    :param transaction: the transaction as JSON; None if the idempotency key has committed already.
    :param generation: of the idempotency key.
    :param state: what a mirror compares with.
    """

    def __init__(
        self,
        settings: Settings,
        targets: Targets,
        store_id: str,
        base: str = "",
        transaction: dict[str, Any] | None = None,
        generation: int = 1,
        state: StateSetup | None = None,
    ) -> None:
        self.settings, self.targets, self.store_id = settings, targets, store_id
        self.base, self.transaction, self.generation, self.state = base, transaction, generation, state

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write the files of one task."""
        if self.transaction is None:
            return Message(None)
        partition, name = attempt_name()
        runs = _Runs(self, Transaction.from_json(self.transaction).id, partition, name)
        try:
            for batch in iterator:
                runs.add(batch)
            runs.end()
            outcome = Outcome(partition=partition, files=runs.files)
        except BaseException as error:
            delete_reported(runs.files)
            if not isinstance(error, ExportQueueError) or error.transient:
                raise
            outcome = Outcome(partition=partition, files={}, problem=Problem.of(error))
        return Message(outcome.to_json())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Stage the reported files, and commit the transaction."""
        if self.transaction is None:
            log.info("idempotency key %r has committed already; nothing is added", self.settings.idempotency_key)
            return
        with contextlib.closing(self.settings.store.open()) as database:
            identity_of(database)
            opened = OpenTransaction.resume(
                database,
                Transaction.from_json(self.transaction),
                idempotency_key=self.settings.idempotency_key,
                generation=self.generation,
            )
            try:
                with opened.abort_on_error():
                    told = [message.outcome for message in messages if isinstance(message, Message)]
                    outcomes = [Outcome.from_json(one) for one in told if one is not None]
                    check_complete(outcomes, len(messages))
                    line = self._stage(opened, collect_files(outcomes))
            except AlreadyCommitted:
                return  # another write of the same unit of work came first
            except RegistrationLost:
                if outcome(database, opened.request).status == "committed":
                    return  # by an earlier call, whose process died before it could report
                raise
        log.info("%s", line)

    def _stage(self, opened: OpenTransaction, files: dict[str, list[FileReport]]) -> str:
        """Stage the files, or the difference of a mirror, and commit; return a line for the log."""
        if self.state is None:
            stage_files(opened, self.targets, files, share_keys=True)
            report = report_of(opened.value.id, files)
            opened.commit(report.to_dict())
            return report.line()
        assert self.settings.mirror is not None
        begin_load(opened.database, opened)  # from now on, an abort deletes the files
        queue = self.targets[self.settings.target.queue or ""]
        place = FilePlace(self.base, self.store_id, opened.id, queue, "difference")
        content = self.state.within(opened.database)
        mirrored = mirror_files(content, files.get(queue.id, []), self.settings.mirror, place)
        if mirrored.files:
            stage_files(opened, self.targets, {queue.id: mirrored.files})
        opened.commit()
        delete_reported(files)
        return mirrored.report.line()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transaction unless it has committed; clean-up deletes its files."""
        if self.transaction is not None:
            with Store.open(self.settings.store) as store:
                store.abort(self.transaction)


class _Runs:
    """The rows of one task, collected by queue until they fill a file."""

    def __init__(self, writer: ExportQueueWriter, transaction: int, partition: int, name: str) -> None:
        self.files: dict[str, list[FileReport]] = {}
        self._writer, self._transaction, self._partition, self._name = writer, transaction, partition, name
        self._seen = 0
        """Number of rows in earlier batches."""
        self._parts: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        target = self._writer.settings.target
        if target.queue is not None:
            self._encode(target.queue, batch, range(batch.num_rows))
        else:
            rows_of: dict[str | None, list[int]] = {}
            for row, queue_id in enumerate(batch.column(target.queue_column).to_pylist()):
                rows_of.setdefault(queue_id, []).append(row)
            for queue_id, rows in rows_of.items():
                if queue_id is None:
                    raise row_without_queue(batch.column(target.key)[rows[0]].as_py(), self._location(rows[0]))
                self._encode(queue_id, batch.take(pa.array(rows)), rows)
        self._seen += batch.num_rows
        if self._bytes >= RUN_BYTES:
            self.end()

    def _location(self, row: int) -> str:
        return row_location(self._partition, self._seen + row)

    def _encode(self, queue_id: str, batch: pa.RecordBatch, rows: Sequence[int]) -> None:
        """Add rows of one queue.

        :param rows: their numbers within the batch that Spark handed over.
        """
        queue, target = self._writer.targets[queue_id], self._writer.settings.target
        keys = key_bytes(raw_keys(batch.column(target.key)), queue, lambda row: self._location(rows[row]))
        values = value_bytes(batch.column(target.value), keys, queue)
        buckets = pa.array(buckets_of(keys.to_pylist(), queue.buckets), pa.int32())
        part = pa.RecordBatch.from_arrays([buckets, keys, values], ["bucket", "key", "value"])
        self._parts.setdefault(queue.id, []).append(part)
        self._bytes += part.nbytes

    def end(self) -> None:
        """Sort and write the collected rows."""
        for queue_id, parts in self._parts.items():
            queue = self._writer.targets[queue_id]
            table = pa.Table.from_batches(parts).sort_by([("bucket", "ascending"), ("key", "ascending")])
            self.files.setdefault(queue_id, []).extend(
                write_segments(
                    checked_for_repetition(table.to_batches(), queue, None),
                    base=self._writer.base,
                    store_id=self._writer.store_id,
                    transaction=self._transaction,
                    name=self._name,
                    buckets_per_range=queue.buckets_per_range,
                )
            )
        self._parts, self._bytes = {}, 0
