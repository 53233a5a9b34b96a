"""Adding whole DataFrames to queues, in one transaction; importing this needs no PySpark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from export_queue.core.errors import InvalidArgument
from export_queue.core.spark.load_report import LoadReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from export_queue.core.client import Store, TransactionContext
    from export_queue.core.state import MirrorReport
    from export_queue.core.store import StoreSpec


_COMMON = frozenset(("queue", "key", "value", "latest_by", "tx", "timeout", "mode"))
_OPTIONS = {
    "append": frozenset(("queue_column", "idempotency_key", "transaction")),
    "mirror": frozenset(("scope", "max_deletes", "dry_run", "settle_timeout")),
}
"""Options of :func:`write_transactional`, by mode."""


def check_options(mode: str, names: Iterable[str]) -> None:
    """Check the names of the arguments of :func:`write_transactional`.

    :raises InvalidArgument: the mode is unknown, or an argument belongs to another mode.
    """
    if mode not in _OPTIONS:
        raise InvalidArgument(f"mode: expected append or mirror, found {mode!r}")
    if unknown := sorted(set(names) - _OPTIONS[mode] - _COMMON):
        raise InvalidArgument(
            f"{', '.join(unknown)}: expected only options of mode {mode!r}, which are "
            f"{', '.join(sorted(_OPTIONS[mode]))}"
        )


@overload
def write_transactional(
    df: DataFrame,
    store: Store | StoreSpec,
    queue: str | None = None,
    *,
    key: str = "key",
    value: str = "value",
    queue_column: str | None = None,
    latest_by: str | None = None,
    idempotency_key: str | None = None,
    tx: TransactionContext | None = None,
    transaction: bool = True,
    timeout: float | None = None,
    mode: Literal["append"] = "append",
) -> LoadReport: ...


@overload
def write_transactional(
    df: DataFrame | Callable[[], DataFrame],
    store: StoreSpec,
    queue: str,
    *,
    key: str = "key",
    value: str = "value",
    latest_by: str | None = None,
    tx: TransactionContext | None = None,
    timeout: float | None = None,
    mode: Literal["mirror"],
    scope: str | bytes | None = None,
    max_deletes: float = 0.2,
    dry_run: bool = False,
    settle_timeout: float = 60.0,
) -> MirrorReport: ...


def write_transactional(
    df: DataFrame | Callable[[], DataFrame],
    store: Store | StoreSpec,
    queue: str | None = None,
    *,
    key: str = "key",
    value: str = "value",
    latest_by: str | None = None,
    tx: TransactionContext | None = None,
    timeout: float | None = None,
    mode: str = "append",
    **options: Any,
) -> LoadReport | MirrorReport:
    """Add each row of a DataFrame to a queue as an entry, all of them or none (I3); or mirror the DataFrame (I16).

    Tasks write sorted files. The commit of one transaction then adds exactly the files that Spark reports. A repeated
    task or a driver that dies leaves files without effect, which ``store.maintain()`` deletes. The DataFrame is
    computed once.

    With ``mode="mirror"`` tasks compare the rows with the queue's state, and only the difference is added: new and
    changed records, and deletes of records that the DataFrame does not have. The DataFrame is computed when all older
    transactions have ended.

    :param df: the rows, of a session of classic Spark. For a mirror it may be a function that returns them, which is
        called when all older transactions have ended.
    :param store: the store; a :class:`StoreSpec` with ``mode="mirror"`` and ``transaction=False``, because each task
        opens the store.
    :param queue: id of the queue; omit it if you give ``queue_column``.
    :param key: name of the column with keys; its type must fit the queue's key codec.
    :param value: name of the column with values; its type must fit the value codec. Null deletes the record; in a
        mirror it is refused.
    :param latest_by: name of the column that decides between rows with the same key: the row with the highest value
        becomes the entry. Without it a repeated key is an error, because the rows of a DataFrame have no order.
    :param tx: a long transaction that the load becomes part of: ``with store.transaction(long=True) as tx``. Its
        commit makes the entries visible, together with everything else in the transaction.
    :param timeout: seconds after which the load can no longer commit; 24 hours.
    :param mode: ``append`` or ``mirror``.
    :param options: see below.
    :returns: what was added; of a mirror, the numbers of new, changed, deleted and unchanged records.
    :raises InvalidArgument: a column is missing, or the queue does not accept its type; no job was started. Or the
        queue of a mirror has no state.
    :raises EntryError: a row is refused: its key is null, too long or repeated, or its value is too large or does not
        fit the codec. The error names the key, or partition and row. Nothing was added.
    :raises SparkJobFailed: the job failed. Nothing was added.
    :raises CommitOutcomeUnknown: the connection broke during the commit, and the store does not answer.
    :raises MirrorRefused: more records would be deleted than ``max_deletes`` allows. Nothing was added.
    :raises StateIncomplete: the first load of the state is missing.
    :raises TransactionsInProgress: older transactions did not end in time; the error names them.

    Options of ``mode="append"``:

    * ``queue_column``: name of the column with the id of each row's queue.
    * ``idempotency_key``: name of the unit of work. It takes effect once; later calls return the first report (I14).
    * ``transaction``: False adds the rows in many small transactions, task by task: a row is visible at once, and is
      added again if Spark repeats its task.

    Options of ``mode="mirror"``:

    * ``scope``: beginning of the keys that the DataFrame has all of. Other keys are left alone.
    * ``max_deletes``: the largest part of the records in the scope that may be deleted, from 0.0 to 1.0, or as an
      ``int`` a number of records; 0.2 by default.
    * ``dry_run``: only report the difference.
    * ``settle_timeout``: seconds to wait for older transactions to end; 60 by default.
    """
    check_options(mode, options)
    from export_queue.core.spark.load import Target, load_frame
    from export_queue.core.spark.mirror import mirror_frame
    from export_queue.core.state import MirrorOptions

    queue_column = options.pop("queue_column", None)
    target = Target(queue=queue, key=key, value=value, queue_column=queue_column, latest_by=latest_by)
    if mode == "mirror":
        return mirror_frame(df, store, target, MirrorOptions(**options), tx=tx, timeout=timeout)
    if callable(df):
        raise InvalidArgument("df: expected a DataFrame, found a function, which only mode='mirror' takes")
    return load_frame(df, store, target, tx=tx, timeout=timeout, **options)


def register_data_source(spark: SparkSession) -> None:
    """Let a session write to queues by ``df.write.format("export_queue")``.

    :param spark: the session.
    """
    from export_queue.core.spark.data_source import ExportQueueDataSource

    spark.dataSource.register(ExportQueueDataSource)
