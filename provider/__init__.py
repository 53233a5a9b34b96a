"""Transactional exports: what a transaction commits, and nothing else, reaches Redis, Elasticsearch and SQL.

This is the package's face: import from here, and from ``export_queue.hooks``, ``.operators``, ``.sensors`` and
``.testing``. Each name is loaded when it is first asked for, so that the import itself needs nothing but the standard
library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from export_queue.core.client import FirstLoad, Store, TransactionContext
    from export_queue.core.drain import DrainReport, Entry, KeyStory, drain, readmit
    from export_queue.core.errors import (
        AfterCommitFailed,
        AlreadyCommitted,
        AmbiguousRecord,
        ChangeSetTooLarge,
        CommitOutcomeUnknown,
        CommitRefused,
        ConfigurationError,
        ConflictError,
        DrainError,
        EntriesNotSettled,
        EntriesWait,
        EntryError,
        EntryRejected,
        ExporterError,
        ExportQueueError,
        HasSubscriptions,
        InvalidArgument,
        LeaseLost,
        LockError,
        LockNotAvailable,
        OptionsDiffer,
        OtherCluster,
        QueueBusy,
        RegistrationLost,
        SchemaVersionError,
        SecretNotFound,
        SinkBelongsToAnother,
        SinkBindingError,
        SinkConfigurationError,
        SinkError,
        SinkLostData,
        SinkRefused,
        SinkUnavailable,
        SnapshotTooOld,
        SparkJobFailed,
        StoreError,
        StoreNotCreated,
        StoreReplaced,
        StoreUnavailable,
        TooManyDeadLetters,
        TransactionEnded,
        TransactionError,
        TransactionsInProgress,
        TransactionTimeout,
        UnknownQueue,
    )
    from export_queue.core.locks import Owner
    from export_queue.core.queue import DeadLetter, DeadLetterFilter, QueuedEntry, Range, bucket
    from export_queue.core.retry import Retry
    from export_queue.core.sinks import (
        ApplyResult,
        Capabilities,
        ControlRecord,
        Delete,
        ElasticsearchSink,
        MemorySink,
        Operations,
        Put,
        RedisSink,
        Rejection,
        Sink,
        SinkSpec,
        SqlSink,
        apply_batch,
        check_owner,
        refuse_seqs,
    )
    from export_queue.core.spark import DrainJob, Submitter, bucket_column, drain_job
    from export_queue.core.store import Limits, Outcome, StoreSpec
    from export_queue.core.transactions import Level, Participant, Transaction

__version__ = "0.1.0"

__all__ = [
    "AfterCommitFailed",
    "AlreadyCommitted",
    "AmbiguousRecord",
    "ApplyResult",
    "Capabilities",
    "ChangeSetTooLarge",
    "CommitOutcomeUnknown",
    "CommitRefused",
    "ConfigurationError",
    "ConflictError",
    "ControlRecord",
    "DeadLetter",
    "DeadLetterFilter",
    "Delete",
    "DrainError",
    "DrainJob",
    "DrainReport",
    "ElasticsearchSink",
    "EntriesNotSettled",
    "EntriesWait",
    "Entry",
    "EntryError",
    "EntryRejected",
    "ExportQueueError",
    "ExporterError",
    "FirstLoad",
    "HasSubscriptions",
    "InvalidArgument",
    "KeyStory",
    "LeaseLost",
    "Level",
    "Limits",
    "LockError",
    "LockNotAvailable",
    "MemorySink",
    "Operations",
    "OptionsDiffer",
    "OtherCluster",
    "Outcome",
    "Owner",
    "Participant",
    "Put",
    "QueueBusy",
    "QueuedEntry",
    "Range",
    "RedisSink",
    "RegistrationLost",
    "Rejection",
    "Retry",
    "SchemaVersionError",
    "SecretNotFound",
    "Sink",
    "SinkBelongsToAnother",
    "SinkBindingError",
    "SinkConfigurationError",
    "SinkError",
    "SinkLostData",
    "SinkRefused",
    "SinkSpec",
    "SinkUnavailable",
    "SnapshotTooOld",
    "SparkJobFailed",
    "SqlSink",
    "Store",
    "StoreError",
    "StoreNotCreated",
    "StoreReplaced",
    "StoreSpec",
    "StoreUnavailable",
    "Submitter",
    "TooManyDeadLetters",
    "Transaction",
    "TransactionContext",
    "TransactionEnded",
    "TransactionError",
    "TransactionTimeout",
    "TransactionsInProgress",
    "UnknownQueue",
    "__version__",
    "apply_batch",
    "bucket",
    "bucket_column",
    "check_owner",
    "drain",
    "drain_job",
    "readmit",
    "refuse_seqs",
]

_ROOMS = {
    "client": "FirstLoad Store TransactionContext",
    "drain": "DrainReport Entry KeyStory drain readmit",
    "locks": "Owner",
    "queue": "DeadLetter DeadLetterFilter QueuedEntry Range bucket",
    "sinks": (
        "ApplyResult Capabilities ControlRecord Delete ElasticsearchSink MemorySink Operations Put RedisSink Rejection "
        "Sink SinkSpec SqlSink apply_batch check_owner refuse_seqs"
    ),
    "spark": "DrainJob Submitter bucket_column drain_job",
    "store": "Limits Outcome StoreSpec",
    "retry": "Retry",
    "transactions": "Level Participant Transaction",
}
"""Names by the room that they are loaded from; all others are errors."""
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not TYPE_CHECKING:  # with a module's __getattr__, a checker takes every name for one that exists

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"{__name__}.core.{_HOME.get(name, 'errors')}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
