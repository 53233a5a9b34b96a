"""Transactional exports: only what a transaction commits reaches Redis, Elasticsearch, OpenSearch and SQL.

This is the public interface: import from here, and from ``export_queue.hooks``, ``.operators``, ``.sensors`` and
``.testing``. Each name is loaded on first use, so that the import itself needs only the standard library. Names that
need Airflow (``queue_asset``, ``export_transaction``, triggers, the notifier, the retry policy) are not in ``__all__``,
so that a star import does not need Airflow, which Spark's environment must not have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from export_queue.assets import queue_asset as queue_asset
    from export_queue.core.client import FirstLoad, Store, TransactionContext
    from export_queue.core.drain import DrainReport, Entry, KeyStory, drain, follow, readmit
    from export_queue.core.errors import (
        AfterCommitFailed,
        AlreadyCommitted,
        AmbiguousRecord,
        ChangeSetTooLarge,
        CodecError,
        ColumnNotObserved,
        CommitOutcomeUnknown,
        CommitRefused,
        ConfigurationError,
        ConflictError,
        DeadLettersLeft,
        DrainError,
        DrainTimedOut,
        EntriesNotSettled,
        EntriesWait,
        EntryError,
        EntryRejected,
        ExporterError,
        ExportQueueError,
        ExportTimedOut,
        HasSubscriptions,
        InvalidArgument,
        LayoutClosed,
        LeaseLost,
        LockError,
        LockNotAvailable,
        MirrorRefused,
        NotExported,
        OptionsDiffer,
        OtherCluster,
        QueueBusy,
        RebuildRefused,
        RegistrationLost,
        SchemaVersionError,
        SecretNotFound,
        SegmentLost,
        SegmentRefused,
        SegmentUnavailable,
        SinkBelongsToAnother,
        SinkBindingError,
        SinkConfigurationError,
        SinkError,
        SinkLostData,
        SinkRefused,
        SinkUnavailable,
        SnapshotTooOld,
        SparkJobFailed,
        StateIncomplete,
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
    from export_queue.core.observers import WaitingRows
    from export_queue.core.queue import DeadLetter, DeadLetterFilter, Mark, QueuedEntry, Range, bucket
    from export_queue.core.retry import Retry
    from export_queue.core.segments import Candidates, CompactionReport
    from export_queue.core.sinks import (
        ApplyResult,
        BoundSink,
        Capabilities,
        Claim,
        ControlRecord,
        Delete,
        ElasticsearchSink,
        ErrorRow,
        ErrorTable,
        Fate,
        FencedSink,
        FloorRecord,
        MemorySink,
        OpenSearchSink,
        Operations,
        PointingSink,
        Put,
        RedisSink,
        Rejection,
        RepairableSink,
        ScannableSink,
        SearchableSink,
        Sink,
        SinkSpec,
        SqlSink,
        StoredRecords,
        SweepableSink,
        apply_batch,
        check_owner,
        raise_floor,
        refuse_seqs,
        register_store,
        stale_rank,
    )
    from export_queue.core.sources import Content, FirstLoadReport, FunctionSource, Source, SqlSource, TableSource
    from export_queue.core.spark import (
        CompactJob,
        DrainJob,
        LoadReport,
        Submitter,
        VerifyJob,
        bucket_column,
        compact_job,
        drain_job,
        register_data_source,
        verify_job,
        write_transactional,
    )
    from export_queue.core.state import MirrorReport, State, StateStatus
    from export_queue.core.store import Limits, Outcome, StoreSpec
    from export_queue.core.transactions import Level, Participant, Transaction
    from export_queue.core.verify import Rebuild, ReplayReport, VerifyReport, verify
    from export_queue.notifications import ExportQueueNotifier as ExportQueueNotifier
    from export_queue.retry_policy import ExportQueueRetryPolicy as ExportQueueRetryPolicy
    from export_queue.transaction_group import export_transaction as export_transaction
    from export_queue.triggers import ExportQueueNotificationTrigger as ExportQueueNotificationTrigger
    from export_queue.triggers import ExportQueueTrigger as ExportQueueTrigger

__version__ = "0.2.0"

__all__ = [
    "AfterCommitFailed",
    "AlreadyCommitted",
    "AmbiguousRecord",
    "ApplyResult",
    "BoundSink",
    "Candidates",
    "Capabilities",
    "ChangeSetTooLarge",
    "Claim",
    "CodecError",
    "ColumnNotObserved",
    "CommitOutcomeUnknown",
    "CommitRefused",
    "CompactJob",
    "CompactionReport",
    "ConfigurationError",
    "ConflictError",
    "Content",
    "ControlRecord",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLettersLeft",
    "Delete",
    "DrainError",
    "DrainJob",
    "DrainReport",
    "DrainTimedOut",
    "ElasticsearchSink",
    "EntriesNotSettled",
    "EntriesWait",
    "Entry",
    "EntryError",
    "EntryRejected",
    "ErrorRow",
    "ErrorTable",
    "ExportQueueError",
    "ExportTimedOut",
    "ExporterError",
    "Fate",
    "FencedSink",
    "FirstLoad",
    "FirstLoadReport",
    "FloorRecord",
    "FunctionSource",
    "HasSubscriptions",
    "InvalidArgument",
    "KeyStory",
    "LayoutClosed",
    "LeaseLost",
    "Level",
    "Limits",
    "LoadReport",
    "LockError",
    "LockNotAvailable",
    "Mark",
    "MemorySink",
    "MirrorRefused",
    "MirrorReport",
    "NotExported",
    "OpenSearchSink",
    "Operations",
    "OptionsDiffer",
    "OtherCluster",
    "Outcome",
    "Owner",
    "Participant",
    "PointingSink",
    "Put",
    "QueueBusy",
    "QueuedEntry",
    "Range",
    "Rebuild",
    "RebuildRefused",
    "RedisSink",
    "RegistrationLost",
    "Rejection",
    "RepairableSink",
    "ReplayReport",
    "Retry",
    "ScannableSink",
    "SchemaVersionError",
    "SearchableSink",
    "SecretNotFound",
    "SegmentLost",
    "SegmentRefused",
    "SegmentUnavailable",
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
    "Source",
    "SparkJobFailed",
    "SqlSink",
    "SqlSource",
    "State",
    "StateIncomplete",
    "StateStatus",
    "Store",
    "StoreError",
    "StoreNotCreated",
    "StoreReplaced",
    "StoreSpec",
    "StoreUnavailable",
    "StoredRecords",
    "Submitter",
    "SweepableSink",
    "TableSource",
    "TooManyDeadLetters",
    "Transaction",
    "TransactionContext",
    "TransactionEnded",
    "TransactionError",
    "TransactionTimeout",
    "TransactionsInProgress",
    "UnknownQueue",
    "VerifyJob",
    "VerifyReport",
    "WaitingRows",
    "__version__",
    "apply_batch",
    "bucket",
    "bucket_column",
    "check_owner",
    "compact_job",
    "drain",
    "drain_job",
    "follow",
    "raise_floor",
    "readmit",
    "refuse_seqs",
    "register_data_source",
    "register_store",
    "stale_rank",
    "verify",
    "verify_job",
    "write_transactional",
]

_ROOMS = {
    "client": "FirstLoad Store TransactionContext",
    "drain": "DrainReport Entry KeyStory drain follow readmit",
    "locks": "Owner",
    "observers": "WaitingRows",
    "queue": "DeadLetter DeadLetterFilter Mark QueuedEntry Range bucket",
    "segments": "Candidates CompactionReport",
    "sinks": (
        "ApplyResult BoundSink Capabilities Claim ControlRecord Delete ElasticsearchSink ErrorRow ErrorTable Fate "
        "FencedSink FloorRecord MemorySink OpenSearchSink Operations PointingSink Put RedisSink Rejection "
        "RepairableSink ScannableSink SearchableSink Sink SinkSpec SqlSink StoredRecords SweepableSink "
        "apply_batch check_owner raise_floor refuse_seqs register_store stale_rank"
    ),
    "spark": (
        "CompactJob DrainJob LoadReport Submitter VerifyJob bucket_column compact_job drain_job "
        "register_data_source verify_job write_transactional"
    ),
    "state": "MirrorReport State StateStatus",
    "store": "Limits Outcome StoreSpec",
    "retry": "Retry",
    "sources": "Content FirstLoadReport FunctionSource Source SqlSource TableSource",
    "transactions": "Level Participant Transaction",
    "verify": "Rebuild ReplayReport VerifyReport verify",
}
"""Names by the room from which they are loaded; all others are errors."""
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
_NEED_AIRFLOW = {
    "ExportQueueNotificationTrigger": "triggers",
    "ExportQueueNotifier": "notifications",
    "ExportQueueRetryPolicy": "retry_policy",
    "ExportQueueTrigger": "triggers",
    "export_transaction": "transaction_group",
    "queue_asset": "assets",
}
"""Names by the module next to this one from which they are loaded."""

if not TYPE_CHECKING:  # with a module's __getattr__, a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name in _NEED_AIRFLOW:
            globals()[name] = found = _from_airflow(name)
            return found
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"{__name__}.core.{_HOME.get(name, 'errors')}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _from_airflow(name: str) -> object:
    try:
        return getattr(import_module(f"{__name__}.{_NEED_AIRFLOW[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "airflow":
            raise
        raise ImportError(
            f"{__name__}.{name} needs Apache Airflow, which is not installed here\n"
            "  hint: pip install 'airflow-provider-export-queue[airflow]'",
            name=error.name,
        ) from error
