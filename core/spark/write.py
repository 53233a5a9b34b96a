"""Adding whole DataFrames to queues, in one transaction; importing this needs no PySpark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from export_queue.core.client import Store, TransactionContext
    from export_queue.core.store import StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load added; the result of its idempotency key.

    :param transaction: the id of the transaction, which is the seq of every entry; None without a transaction.
    :param entries: number of entries added.
    :param bytes: size of their keys and values.
    :param files: number of files written.
    :param queues: number of entries by queue.
    :param seconds: how long the load took.
    :param repeated: whether an earlier call under the same idempotency key added them, and this call added nothing.
    """

    transaction: int | None
    entries: int
    bytes: int
    files: int
    queues: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    repeated: bool = False

    def line(self) -> str:
        """Return one line for a log."""
        names = ", ".join(sorted(self.queues)) or "no queue"
        text = f"{names}: {self.entries} entries, {self.bytes} bytes in {self.files} files; {self.seconds:.1f} s"
        if self.transaction is not None:
            text += f"; transaction {self.transaction}"
        return f"{text}; added by an earlier call" if self.repeated else text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the id is text, because doubles cannot hold it."""
        return asdict(self) | {"transaction": None if self.transaction is None else str(self.transaction)}


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

    Tasks write sorted files. The commit of one transaction then adds exactly the files that Spark reports. A repeated
    task or a driver that dies leaves files without effect, which ``store.maintain()`` deletes. The DataFrame is
    computed once.

    :param df: the rows, of a session of classic Spark.
    :param store: the store; with ``transaction=False`` a :class:`StoreSpec`, because each task opens the store.
    :param queue: id of the queue; omit it if you give ``queue_column``.
    :param key: name of the column with keys; its type must fit the queue's key codec.
    :param value: name of the column with values; its type must fit the value codec. Null deletes the record.
    :param queue_column: name of the column with the id of each row's queue.
    :param latest_by: name of the column that decides between rows with the same key: the row with the highest value
        becomes the entry. Without it a repeated key is an error, because the rows of a DataFrame have no order.
    :param idempotency_key: name of the unit of work. It takes effect once; later calls return the first report (I14).
    :param tx: a long transaction that the load becomes part of: ``with store.transaction(long=True) as tx``. Its
        commit makes the entries visible, together with everything else in the transaction.
    :param transaction: False adds the rows in many small transactions, task by task: a row is visible at once, and is
        added again if Spark repeats its task.
    :param timeout: seconds after which the load can no longer commit; 24 hours.
    :returns: what was added.
    :raises InvalidArgument: a column is missing, or the queue does not accept its type; no job was started.
    :raises EntryError: a row is refused: its key is null, too long or repeated, or its value is too large or does not
        fit the codec. The error names the key, or partition and row. Nothing was added.
    :raises SparkJobFailed: the job failed. Nothing was added.
    :raises CommitOutcomeUnknown: the connection broke during the commit, and the store does not answer.
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
