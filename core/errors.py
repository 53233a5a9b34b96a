"""The errors of Export Queue.

Every error names its subject, and says what was expected and found. It has two attributes for callers: ``transient``
says whether trying again may help, ``hint`` what to do next.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar


class ExportQueueError(Exception):
    """Base class of all errors that this library raises on purpose.

    :param message: what happened, in one sentence that names the subject.
    :param hint: what to do next; by default the hint of the class.
    """

    transient: bool = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.hint = self.default_hint if hint is None else hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigurationError(ExportQueueError):
    """The configuration or an argument is wrong; trying again does not help."""


class InvalidArgument(ConfigurationError, ValueError):
    """An argument is not allowed."""


class UnknownQueue(ConfigurationError):
    """The store has no queue with this name."""

    default_hint = (
        "configure it first: export-queue configure, store.configure_queue(...) or ExportQueueConfigureOperator"
    )


class ColumnNotObserved(ConfigurationError):
    """The column is not observed, so writes to it do not notify."""

    default_hint = "declare it once, before its writers start: store.watch(table, column), or store.observe(...)"


class OptionsDiffer(ConfigurationError):
    """A queue or table exists with different options."""

    default_hint = "ask for the stored options, or use another name"


class HasSubscriptions(ConfigurationError):
    """The queue has subscriptions, which hold its entries."""

    default_hint = "name one of its subscriptions, as in 'airports/search'"


class EntriesWait(ConfigurationError):
    """The change would lose pending entries, or leave them to nobody."""


class CodecError(ConfigurationError):
    """A codec cannot be loaded, or cannot decode stored data."""

    default_hint = "the data was stored under another codec, or the codec has changed since"


class SinkBindingError(ConfigurationError):
    """The queue is bound to another sink."""

    default_hint = (
        "two drains into different sinks would split the data; "
        "where the sink has moved, export-queue rebind QUEUE NAME, or store.rebind(queue_id, sink_name), binds the "
        "queue to it (docs/queues.md); "
        "to feed both, give the queue two subscriptions (docs/subscriptions.md), or drain into a composite sink"
    )


class SinkConfigurationError(ConfigurationError):
    """The description of the sink is wrong, or does not fit the target."""

    is_unwritten = False
    """Whether nothing of the batch had been written when the error was raised."""


class SecretNotFound(ConfigurationError):
    """A reference to a secret leads nowhere."""


class StateIncomplete(ConfigurationError):
    """The state of a queue lacks what was committed before it began."""

    default_hint = (
        "make its first load: with store.first_load(store.state(queue_id).id) as load; or, if nothing was committed "
        "before, store.waive_first_load(store.state(queue_id).id)"
    )


class MirrorRefused(ExportQueueError):
    """A mirror load would delete more records than it is allowed to."""


class RebuildRefused(ExportQueueError):
    """Readers were not led to the new target of a rebuild, because it differs from the queue."""


class EntryError(ExportQueueError, ValueError):
    """The queue refuses a key or value."""


class StoreError(ExportQueueError):
    """Base class of errors about the store."""


class StoreNotCreated(StoreError):
    """The database holds no store yet."""

    default_hint = "run `export-queue init`, or call store.create()"


class SchemaVersionError(StoreError):
    """This version of the library does not support the schema of the store."""


class OtherCluster(StoreError):
    """The store was restored into another cluster of servers, where its transaction numbers have no meaning."""

    default_hint = "end all that uses this copy, then run `export-queue adopt` once"


class StoreReplaced(StoreError):
    """The store was restored or created anew after this process read its queues and tables."""

    transient = True
    default_hint = "run the function again from its start: it reads them anew; store.run() does this for you"


class StoreUnavailable(StoreError):
    """The store's database cannot be reached or does not answer."""

    transient = True
    sent: bool = True
    """Whether the request may have reached the database. If not, it has no effect and never will."""
    default_hint = "check that the database runs and that the connection is right, then try again"


class SegmentLost(StoreError):
    """A file of bulk entries is missing or damaged."""

    default_hint = (
        "the entries stay queued: bring the file back from a copy of the folder, then drain again; one that a "
        "compaction wrote falls back on its inputs: export-queue fall-back QUEUE FILE; else "
        "store.dead_letters.give_up_file(queue_id, file) lets drains pass over it (docs/segments.md)"
    )


class SegmentRefused(StoreError):
    """The location of the files of bulk entries does not exist, or denies access to this process."""

    default_hint = (
        "see that the bucket exists and that the credentials of this process may use it (docs/segments.md); a process "
        "that may not list a bucket is refused, too, where a file is missing"
    )


class SegmentUnavailable(StoreError):
    """A file of bulk entries cannot be read or written at present."""

    transient = True
    default_hint = "see that the filesystem of the segments can be reached, with the credentials of this process"


class TransactionError(ExportQueueError):
    """Base class of errors about one transaction."""


class ConflictError(TransactionError):
    """Another transaction has committed a write to a key of this one since it started."""

    transient = True
    default_hint = "run the function again from its start; store.run() does this for you"

    @classmethod
    def between(cls, *, transaction: int | None, key: str, other: int) -> ConflictError:
        """Return the error for a transaction and the other one that wrote the key last.

        :param transaction: id of the refused transaction; None if it has none.
        :param key: the conflict key, as readable text.
        """
        started = f", started at {clock_of(transaction)}" if transaction else ""
        return cls(
            f"commit of transaction {transaction or 'without id'} refused: key {key!r} has changed\n"
            f"  expected the version of this transaction's snapshot{started}\n"
            f"  found a commit of transaction {other}, started at {clock_of(other)}"
        )


class SnapshotTooOld(TransactionError):
    """Clean-up may have deleted versions that this snapshot needs."""

    transient = True
    default_hint = "start a new transaction; a long one needs transaction(long=True)"


class TransactionTimeout(TransactionError):
    """The transaction's time-out has passed, so it cannot commit."""

    transient = True
    default_hint = (
        "do less in one transaction, or give it more time: timeout= of store.run and store.transaction, "
        "transaction_timeout= of @task.export_transaction"
    )


class TransactionsInProgress(TransactionError):
    """Older transactions are still in progress."""

    transient = True
    default_hint = (
        "let them end, or abort one whose program is gone (export-queue transactions list, "
        "export-queue transactions abort TRANSACTION), then try again"
    )


class RegistrationLost(TransactionError):
    """The transaction has been ended by others, or after its time-out."""

    transient = True
    default_hint = "run the function again, from its start"


class CommitRefused(TransactionError):
    """The commit was refused and can no longer take effect."""

    transient = True
    default_hint = "run the function again from its start; store.run() does this for you"


class LayoutClosed(TransactionError):
    """Bulk entries were written for buckets that their queue no longer has."""

    transient = True
    default_hint = "load again: this writes the files again, in the queue's current layout"


class CommitOutcomeUnknown(TransactionError):
    """The connection broke during the commit, and the store could not be asked for the outcome."""

    default_hint = "ask again with store.outcome(request) once the store is reachable"


class AfterCommitFailed(TransactionError):
    """The transaction has committed, but a participant failed afterwards."""

    default_hint = "do not run the function again: it has taken effect; mend what the participant does after commits"


class ChangeSetTooLarge(TransactionError):
    """The transaction exceeds the maximum size."""

    default_hint = (
        "divide the work, or use transaction(long=True) and call flush() now and then; "
        "Store.open(url, limits=Limits(...)) sets other bounds"
    )


class TransactionEnded(TransactionError):
    """The transaction has been committed or aborted and can no longer be used."""

    default_hint = "start a new transaction"


class AlreadyCommitted(TransactionError):
    """A transaction with this idempotency key has already committed.

    :param result: the JSON value that was stored with that commit.
    """

    default_hint = "nothing is to be done: the work has taken effect"

    def __init__(self, idempotency_key: str, result: Any) -> None:
        super().__init__(f"idempotency key {idempotency_key!r} has already committed")
        self.idempotency_key = idempotency_key
        self.result = result


class LockError(ExportQueueError):
    """Base class of errors about a lock on part of a queue."""


class LockNotAvailable(LockError):
    """Another holder has a lock on this part of the queue."""

    transient = True
    default_hint = "wait for it (if_locked='wait'), or see who holds it: export-queue locks"


class QueueBusy(LockError):
    """The queue cannot be changed while transactions that add to it are in progress."""

    transient = True
    default_hint = "try again; a transaction that is bound to a connection holds them until its user commits"


class LeaseLost(LockError):
    """The holder's lease has expired or been revoked, so it can change nothing more."""

    transient = True
    default_hint = "start again; what was acknowledged stays removed"


class SinkError(ExportQueueError):
    """Base class of errors about a sink."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached, is overloaded or does not answer."""

    transient = True
    default_hint = "check that the sink runs; entries wait in the queue until it does"


class SinkRefused(SinkError):
    """The sink refuses all writes: missing rights, a read-only server or a missing target."""


class SinkBelongsToAnother(SinkError):
    """The sink was last fed by another store, or by a later state of this store."""

    default_hint = (
        "the store was rebuilt or restored: its sequences would all be stale in this sink; "
        "create it with a floor, or empty the sink together with its control record"
    )


class SinkLostData(SinkError):
    """The sink lost data that it had acknowledged: it was emptied, restored, or restarted without its last writes."""

    default_hint = (
        "what was drained before is gone from the sink; take the sink as it is: export-queue readmit QUEUE SINK.json "
        "--store …, or export_queue.readmit(store, queue_id, sink). It counts as incomplete until a first load of the "
        "subscription has delivered everything again. If the queue has no subscriptions, add all records that the sink "
        "lacks again, then declare it complete: export-queue complete QUEUE"
    )
    is_older = False
    """Whether the sink is in an older state, and may hold records that have been deleted since."""

    @classmethod
    def older(cls, message: str) -> SinkLostData:
        """Return the error for a sink that is in an older state."""
        error = cls(
            message,
            hint=f"empty it first: neither a load nor a drain removes what was deleted since; {cls.default_hint}",
        )
        error.is_older = True
        return error


class DrainError(ExportQueueError):
    """Base class of errors that stop a drain."""


class ExporterError(DrainError):
    """The exporter cannot be loaded, opened or closed."""


class AmbiguousRecord(DrainError):
    """Two entries of one transaction write different documents to the same record."""

    positions: tuple[int, int] = (0, 0)
    """Positions of the two operations in their batch."""
    default_hint = "make the record's id depend on the entry's key, or add both changes under one key"


class EntryRejected(DrainError):
    """An entry was rejected, and ``on_error="fail"`` stops the drain at the first one."""

    default_hint = "mend the entry's producer or the exporter, or drain with on_error='dead_letter'"


class TooManyDeadLetters(DrainError):
    """More entries were rejected than ``max_dead``, which points to a bug rather than bad data."""

    default_hint = "mend the exporter or the sink, then drain again; raise max_dead only if the data is to blame"


class DeadLettersLeft(DrainError):
    """Everything else was delivered, but the reader has more dead letters than the task allows."""

    default_hint = "see them, mend the cause, and retry or drop them; or allow them"


class EntriesNotSettled(DrainError):
    """The drain is waiting for older transactions that are still in progress."""

    transient = True
    default_hint = (
        "a sink with guard='fence' takes an entry only when no older one can come any more: let them end, "
        "or abort them, or give the drain a longer lock_timeout"
    )


class DrainTimedOut(DrainError):
    """The drain's time limit passed before everything was delivered."""

    transient = True
    default_hint = "run it again, or give it more time (time_limit); what was acknowledged stays removed"
    awaited: str = ""
    """What had not answered when the time was over; empty if the drain waited for nothing."""


class SparkJobFailed(DrainError):
    """Spark could not complete the drain's tasks."""

    transient = True
    default_hint = "see Spark's log above; what was acknowledged stays removed, the rest is queued"


class ExportTimedOut(ExportQueueError):
    """What a transaction added was not acknowledged by the reader's sink in time."""

    transient = True
    default_hint = "wait longer (timeout), and see whether a drain of the reader runs: export-queue status"


class NotExported(ExportQueueError):
    """A part of what a transaction added will not reach the reader's sink."""

    default_hint = "see the reader's dead letters: export-queue dead list QUEUE"


MOST_TEXT = 10_000
"""Maximum number of characters that are kept of a foreign error."""


def text_of(error: object) -> str:
    """Return an error, or its reason, as text that every database, log and terminal accepts.

    Lone surrogates and NUL are escaped, and text longer than 10 000 characters is cut.
    """
    try:
        text = str(error) or repr(error)
    except Exception as failed:
        text = f"(the text of this {type(error).__name__} cannot be had: its __str__ raised {type(failed).__name__})"
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}… ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def clock_of(transaction_id: int) -> str:
    """Return the wall-clock time that a transaction id contains."""
    return datetime.fromtimestamp(transaction_id / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
