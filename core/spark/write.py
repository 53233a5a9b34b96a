"""Adding whole DataFrames to queues, in one transaction; importing this needs no PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from export_queue.core.spark.load_report import LoadReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from export_queue.core.client import Store, TransactionContext
    from export_queue.core.store import StoreSpec


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
) -> LoadReport:
    """Add each row of a DataFrame to a queue as an entry, all of them or none (I3).

    Tasks write sorted files that nobody sees; the commit of one transaction makes exactly the files count that Spark
    reports. A task that was repeated, or a driver that dies at any moment, leaves files without effect, which
    ``store.maintain()`` deletes. The DataFrame is computed once.

    :param df: the rows, of a session of classic Spark.
    :param store: the store; with ``transaction=False`` a :class:`StoreSpec`, since tasks open it themselves.
    :param queue: id of the queue; left out with ``queue_column``.
    :param key: name of the column with keys, of a type that fits the queue's key codec.
    :param value: name of the column with values, of a type that fits the value codec; null says: the record is gone.
    :param queue_column: name of a column that says for each row which queue gets it.
    :param latest_by: name of a column: of rows with the same key the one with the highest value in it counts. Without
        it a key that comes twice is an error: a DataFrame has no order that would say which row is the last.
    :param idempotency_key: the unit of work: it takes effect once, and later calls return the first report (I14).
    :param tx: a long transaction that the load is a part of: ``with store.transaction(long=True) as tx``. Its commit
        makes the entries visible, together with everything else in it.
    :param transaction: False adds the rows in many small transactions, task by task: a row is visible at once, and
        twice if Spark repeats its task.
    :param timeout: seconds after which the load can no longer commit; 24 hours.
    :returns: what was added.
    :raises InvalidArgument: a column is missing or of a type that the queue does not take; nothing has run.
    :raises EntryError: a row is refused: its key is null, too long, or there twice; its value is too large or no value
        of the codec. The error names the key, or partition and row. Nothing is visible.
    :raises SparkJobFailed: the job failed. Nothing is visible.
    :raises CommitOutcomeUnknown: the connection broke in the commit, and the store cannot be asked.
    """
    from export_queue.core.spark.load import Target, load_frame

    return load_frame(
        df,
        store,
        Target(queue=queue, key=key, value=value, queue_column=queue_column, latest_by=latest_by),
        idempotency_key=idempotency_key,
        tx=tx,
        transaction=transaction,
        timeout=timeout,
    )


def register_data_source(spark: SparkSession) -> None:
    """Let a session write to queues by ``df.write.format("export_queue")``.

    :param spark: the session.
    """
    from export_queue.core.spark.data_source import ExportQueueDataSource

    spark.dataSource.register(ExportQueueDataSource)
