"""The error tree of Export Queue.

Every error names its subject, the expected and the found, and carries two facts that
callers act on: ``transient`` (trying again may help) and ``hint`` (what to do next)::

    ExportQueueError
    ├── ConfigurationError            wrong from the start; trying again changes nothing
    │   ├── InvalidArgument
    │   ├── UnknownQueue
    │   ├── ColumnNotObserved         nobody has declared the column, so that no write of it notifies
    │   ├── OptionsDiffer             a queue or table exists with other options
    │   ├── HasSubscriptions          readers of the queue are its subscriptions, each for itself
    │   ├── EntriesWait               a change would lose what waits in the queue
    │   ├── CodecError                a codec cannot be loaded, or does not decode what is stored
    │   ├── FoldError                 the fold of a queue cannot be loaded, or does not take the values of a key
    │   ├── SinkBindingError          the queue drains into another sink
    │   ├── SinkConfigurationError    the sink cannot be used as it is described
    │   └── SecretNotFound
    ├── EntryError                    one key or value that the queue refuses
    ├── StoreError
    │   ├── StoreNotCreated
    │   ├── SchemaVersionError
    │   ├── OtherCluster              the store was restored into another cluster of servers
    │   ├── StoreReplaced             transient; restored or created anew under a process that uses it
    │   ├── StoreUnavailable          transient
    │   ├── SegmentLost               a file of entries is missing or damaged
    │   ├── SegmentRefused            the place of the files refuses this process, or does not exist
    │   └── SegmentUnavailable        transient
    ├── TransactionError
    │   ├── ConflictError             transient
    │   ├── SnapshotTooOld            transient
    │   ├── TransactionTimeout        transient
    │   ├── TransactionsInProgress    transient; a first load waits for them to end
    │   ├── RegistrationLost          transient
    │   ├── CommitRefused             transient
    │   ├── LayoutClosed              transient; the queue's buckets were altered
    │   ├── CommitOutcomeUnknown
    │   ├── AfterCommitFailed         it has committed; a participant failed afterwards
    │   ├── ChangeSetTooLarge
    │   ├── TransactionEnded
    │   └── AlreadyCommitted          the idempotency key has taken effect; carries the stored result
    ├── LockError
    │   ├── LockNotAvailable          transient
    │   ├── QueueBusy                 transient; its subscriptions cannot change at this moment
    │   └── LeaseLost                 transient
    ├── SinkError
    │   ├── SinkUnavailable           transient
    │   ├── SinkRefused               the target takes no writes at all
    │   ├── SinkBelongsToAnother      the sink was fed by another, or a younger, store
    │   └── SinkLostData              the sink does not remember what it acknowledged
    └── DrainError
        ├── ExporterError
        ├── AmbiguousRecord
        ├── EntryRejected             ``on_error="fail"`` met an entry that was rejected
        ├── TooManyDeadLetters
        ├── EntriesNotSettled         transient
        ├── DrainTimedOut             transient; the drain's own time limit has passed
        └── SparkJobFailed            transient
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar


class ExportQueueError(Exception):
    """Base of all errors that this library raises on purpose.

    :param message: what happened, in one sentence that names the thing.
    :param hint: what to do next; the class's own hint where it is left out.
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
    """The set-up is wrong; trying again changes nothing."""


class InvalidArgument(ConfigurationError, ValueError):
    """An argument is outside of what is allowed."""


class UnknownQueue(ConfigurationError):
    """The store has no queue of this name."""

    default_hint = (
        "configure it first: export-queue configure, store.configure_queue(...) or ExportQueueConfigureOperator"
    )


class ColumnNotObserved(ConfigurationError):
    """The column is not observed, so that no write to it notifies anybody."""

    default_hint = "declare it once, before its writers start: store.watch(table, column), or store.observe(...)"


class OptionsDiffer(ConfigurationError):
    """A queue or table exists with other options than those asked for."""

    default_hint = "ask for the stored options, or use another name"


class HasSubscriptions(ConfigurationError):
    """The queue has no entries of its own: its subscriptions have them."""

    default_hint = "name one of its subscriptions, as in 'airports/search'"


class EntriesWait(ConfigurationError):
    """What waits in the queue would be lost, or would belong to nobody."""


class CodecError(ConfigurationError):
    """A codec cannot be loaded, or does not decode what is stored."""

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
    """The sink cannot be used as it is described."""

    is_unwritten = False
    """Whether it was raised before anything of the batch was written."""


class SecretNotFound(ConfigurationError):
    """A reference to a secret leads nowhere."""


class EntryError(ExportQueueError, ValueError):
    """The queue refuses this key or value."""


class StoreError(ExportQueueError):
    """Something about the store itself."""


class StoreNotCreated(StoreError):
    """The database holds no store yet."""

    default_hint = "run `export-queue init`, or call store.create()"


class SchemaVersionError(StoreError):
    """The store's schema does not fit this version of the library."""


class OtherCluster(StoreError):
    """The store was copied into another cluster of servers, whose numbers of SQL transactions mean something else."""

    default_hint = "end all that uses this copy, then run `export-queue adopt` once"


class StoreReplaced(StoreError):
    """The store was restored to an earlier state, or created anew, since this process read its queues and tables."""

    transient = True
    default_hint = "run the function again from its start: it reads them anew; store.run() does this for you"


class StoreUnavailable(StoreError):
    """The store's database cannot be reached or does not answer."""

    transient = True
    sent: bool = True
    """Whether something may have reached the database; if not, nothing has taken effect, nor ever will."""
    default_hint = "check that the database runs and that the connection is right, then try again"


class SegmentLost(StoreError):
    """A file of entries is missing or damaged."""

    default_hint = (
        "the entries stay queued: bring the file back from a copy of the folder, then drain again; one that a "
        "compaction wrote falls back on its inputs: export-queue fall-back QUEUE FILE; else "
        "store.dead_letters.give_up_file(queue_id, file) lets drains pass over it (docs/segments.md)"
    )


class SegmentRefused(StoreError):
    """The place of the files of entries refuses this process, or does not exist."""

    default_hint = (
        "see that the bucket exists and that the credentials of this process may use it (docs/segments.md); a process "
        "that may not list a bucket is refused, too, where a file is missing"
    )


class SegmentUnavailable(StoreError):
    """A file of entries cannot be read or written now."""

    transient = True
    default_hint = "see that the filesystem of the segments can be reached, with the credentials of this process"


class TransactionError(ExportQueueError):
    """Something about one transaction."""


class ConflictError(TransactionError):
    """Another transaction committed a write to a key of this one after it had started."""

    transient = True
    default_hint = "run the function again from its start; store.run() does this for you"

    @classmethod
    def between(cls, *, transaction: int | None, key: str, other: int) -> ConflictError:
        """Name the key, both transactions and both times.

        :param transaction: id of the refused transaction; None where none was drawn.
        :param key: the conflict key, readable.
        :param other: id of the transaction that wrote the key last.
        """
        started = f", started at {clock_of(transaction)}" if transaction else ""
        return cls(
            f"commit of transaction {transaction or 'without id'} refused: key {key!r} has changed\n"
            f"  expected the version of this transaction's snapshot{started}\n"
            f"  found a commit of transaction {other}, started at {clock_of(other)}"
        )


class SnapshotTooOld(TransactionError):
    """Clean-up may have removed versions that this snapshot needs."""

    transient = True
    default_hint = "start a new transaction; a long one needs transaction(long=True)"


class TransactionTimeout(TransactionError):
    """The transaction's deadline has passed, so it cannot commit."""

    transient = True
    default_hint = (
        "do less in one transaction, or give it more time: timeout= of store.run and store.transaction, "
        "transaction_timeout= of @task.export_transaction"
    )


class TransactionsInProgress(TransactionError):
    """Transactions that began before are still in progress."""

    transient = True
    default_hint = "let them end, or abort them, then try again; the view active_transactions lists long ones"


class RegistrationLost(TransactionError):
    """The store knows this transaction no longer: it was ended by others, or after its time-out."""

    transient = True
    default_hint = "run the function again, from its start"


class CommitRefused(TransactionError):
    """This commit was refused, and stays refused."""

    transient = True
    default_hint = "run the function again from its start; store.run() does this for you"


class LayoutClosed(TransactionError):
    """Bulk entries were laid out for buckets that their queue does not have any more."""

    transient = True
    hint = "load again: the files are written anew, in the queue's layout"


class CommitOutcomeUnknown(TransactionError):
    """The connection broke during the commit, and its outcome could not be learned."""

    default_hint = "ask again with store.outcome(request) once the store is reachable"


class AfterCommitFailed(TransactionError):
    """The transaction has committed, and a participant failed when it was told."""

    default_hint = "do not run the function again: it has taken effect; mend what the participant does after commits"


class ChangeSetTooLarge(TransactionError):
    """The transaction writes more than one transaction may."""

    default_hint = (
        "divide the work, or use transaction(long=True) and call flush() now and then; "
        "Store.open(url, limits=Limits(...)) sets other bounds"
    )


class TransactionEnded(TransactionError):
    """The transaction has been committed or aborted and cannot be used any more."""

    default_hint = "start a new transaction"


class AlreadyCommitted(TransactionError):
    """A transaction with this idempotency key has committed before.

    :param idempotency_key: the idempotency key.
    :param result: the JSON result stored with that commit.
    """

    default_hint = "nothing is to be done: the work has taken effect"

    def __init__(self, idempotency_key: str, result: Any) -> None:
        super().__init__(f"idempotency key {idempotency_key!r} has already committed")
        self.idempotency_key = idempotency_key
        self.result = result


class LockError(ExportQueueError):
    """Something about a lock on a part of a queue."""


class LockNotAvailable(LockError):
    """Another holder works on this part of the queue."""

    transient = True
    default_hint = "wait for it (if_locked='wait'), or see who holds it: export-queue locks"


class QueueBusy(LockError):
    """Transactions that add to the queue are in progress, and its subscriptions cannot change meanwhile."""

    transient = True
    default_hint = "try again; a transaction that is bound to a connection holds them until its user commits"


class LeaseLost(LockError):
    """The lease of this holder has expired or was revoked; it may change nothing any more."""

    transient = True
    default_hint = "start again; what was acknowledged stays removed"


class SinkError(ExportQueueError):
    """Something about a sink."""


class SinkUnavailable(SinkError):
    """The sink cannot be reached, is overloaded or does not answer."""

    transient = True
    default_hint = "check that the sink runs; entries wait in the queue until it does"


class SinkRefused(SinkError):
    """The sink takes no writes as it is: rights, a read-only server, a missing target."""


class SinkBelongsToAnother(SinkError):
    """The sink was last fed by another store, or by this one in a later state."""

    default_hint = (
        "the store was rebuilt or restored: its sequences would all be stale in this sink; "
        "create it with a floor, or empty the sink together with its control record"
    )


class SinkLostData(SinkError):
    """The sink does not hold what it has acknowledged: it was emptied, restored, or restarted without its last data."""

    default_hint = (
        "what was drained before is gone from the sink; take the sink as it is: export-queue readmit QUEUE SINK.json "
        "--store …, or export_queue.readmit(store, queue_id, sink). It counts as incomplete until a first load of the "
        "subscription has delivered everything again. If the queue has no subscriptions, add all records that the sink "
        "lacks again, then declare it complete: export-queue complete QUEUE"
    )
    is_older = False
    """Whether the sink is back in an older state, in which it may hold records that were deleted since."""

    @classmethod
    def older(cls, message: str) -> SinkLostData:
        """Say that a sink is in an older state."""
        error = cls(
            message,
            hint=f"empty it first: neither a load nor a drain removes what was deleted since; {cls.default_hint}",
        )
        error.is_older = True
        return error


class DrainError(ExportQueueError):
    """A drain cannot go on."""


class ExporterError(DrainError):
    """The exporter cannot be found, opened or closed."""


class AmbiguousRecord(DrainError):
    """Two entries of one transaction put different documents into one record."""

    positions: tuple[int, int] = (0, 0)
    """Positions, in their batch, of the two operations."""
    default_hint = "make the record's id depend on the entry's key, or add both changes under one key"


class EntryRejected(DrainError):
    """An entry was rejected and the drain was told to stop at the first."""

    default_hint = "mend the entry's producer or the exporter, or drain with on_error='dead_letter'"


class TooManyDeadLetters(DrainError):
    """More entries were rejected than a drain may set aside: a bug, not data."""

    default_hint = "mend the exporter or the sink, then drain again; raise max_dead only if the data is to blame"


class EntriesNotSettled(DrainError):
    """The drain's entries wait for older transactions that are still in progress."""

    transient = True
    default_hint = (
        "a sink with guard='fence' takes an entry only when no older one can come any more: let them end, "
        "or abort them, or give the drain a longer lock_timeout"
    )


class DrainTimedOut(DrainError):
    """The drain's time limit has passed before everything was brought."""

    transient = True
    default_hint = "run it again, or give it more time (time_limit); what was acknowledged stays removed"
    awaited: str = ""
    """Who had not answered when the time was over; empty where the drain waited for nobody."""


class SparkJobFailed(DrainError):
    """Spark could not run the drain's tasks to their end."""

    transient = True
    default_hint = "see Spark's log above; what was acknowledged stays removed, the rest is queued"


MOST_TEXT = 10_000
"""Characters that are kept of a foreign error."""


def text_of(error: object) -> str:
    """Put an error, or the reason of one, into text that every database, log and terminal takes.

    Half characters and NUL are escaped, and what is longer than 10 000 characters is cut. An error whose ``__str__``
    fails is named by its class.
    """
    try:
        text = str(error) or repr(error)
    except Exception as failed:
        text = f"(the text of this {type(error).__name__} cannot be had: its __str__ raised {type(failed).__name__})"
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}… ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def clock_of(transaction_id: int) -> str:
    """Show the wall-clock time that a transaction id carries."""
    return datetime.fromtimestamp(transaction_id / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
