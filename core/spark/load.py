"""The driver's side of a bulk load: it adds the rows of a DataFrame as entries, all of them or none.

Tasks write files and report them (task commit). The driver stages exactly the reported files under the id of a long
transaction and commits it (job commit); it never lists folders. An abort deletes the files at once. The store's
clean-up deletes files that later attempts of tasks write.

The task of a row comes from other bits of the key's hash than its bucket, so that all cores stay busy even if the keys
fall into few buckets.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from export_queue.core.client import Store, TransactionContext, long_transaction
from export_queue.core.errors import AlreadyCommitted, InvalidArgument
from export_queue.core.segments import TARGET_BYTES, begin_load
from export_queue.core.spark.action import collect_outcomes
from export_queue.core.spark.engine import ask_executors, check_driver
from export_queue.core.spark.frames import sorted_entries
from export_queue.core.spark.job_commit import check_complete, report_of, stage_files
from export_queue.core.spark.load_report import LoadReport
from export_queue.core.spark.load_tasks import LoadSetup, Outcome, collect_files, load_task
from export_queue.core.spark.plain_adds import add_plainly
from export_queue.core.spark.targets import Target, Targets
from export_queue.core.store import StoreSpec, identity_of
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SMALLEST_TASK_BYTES = 4 << 20
_UNKNOWN_BYTES = 1 << 50
"""Spark's estimate of a size is at least this if Spark does not know it."""

log = logging.getLogger("export_queue.load")

__all__ = ["Target", "check_frame", "count_tasks", "load_frame", "opened_store"]


def load_frame(
    df: DataFrame,
    store: Store | StoreSpec,
    target: Target,
    *,
    idempotency_key: str | None = None,
    tx: TransactionContext | None = None,
    transaction: bool = True,
    timeout: float | None = None,
) -> LoadReport:
    """Add the rows of a frame; see :func:`export_queue.core.spark.write.write_transactional`."""
    check_frame(df)
    _check_choices(store, idempotency_key, tx, timeout, target.latest_by, transaction=transaction)
    with opened_store(store) as found:
        database = found.database
        targets = target.find(database, df.schema, bulk=transaction)
        check_driver(["pandas", "export_queue.core.spark.load_tasks"])
        ask_executors(df.sparkSession.sparkContext, ["export_queue.core.spark.load_tasks"], [])
        if not transaction:
            assert isinstance(store, StoreSpec)
            return add_plainly(df, store, target, targets)
        if tx is not None:
            opened = long_transaction(tx)
            if identity_of(opened.database).store_id != found.id:
                raise InvalidArgument("tx is a transaction of another store than the one given")
            return _load(df, opened, target, targets.limited_to(opened))
        try:
            opened = OpenTransaction(
                database, kind="long", timeout=timeout, idempotency_key=idempotency_key, queues=target.names
            )
            with opened.abort_on_error():
                report = _load(df, opened, target, targets)
                opened.commit(report.to_dict())
        except AlreadyCommitted as error:
            report = first_report(error)
    log.info("%s", report.line())
    return report


def first_report(error: AlreadyCommitted) -> LoadReport:
    """Return the report of the call that committed under the same idempotency key.

    :raises InvalidArgument: the work that committed under it was not a load.
    """
    try:
        return replace(msgspec.convert(error.result, LoadReport, strict=False), repeated=True)
    except msgspec.ValidationError:
        raise InvalidArgument(
            f"idempotency key {error.idempotency_key!r}: work that was not a load has committed under it",
            hint="give each unit of work a key of its own",
        ) from error


def check_frame(df: DataFrame) -> None:
    """Check that a frame is a batch of a classic session.

    :raises InvalidArgument: it is not.
    """
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise InvalidArgument(
            "expected a DataFrame of a classic session, found one of Spark Connect",
            hint='use the data source: df.write.format("export_queue")',
        )
    if df.isStreaming:
        raise InvalidArgument(
            "expected a DataFrame of a batch, found a streaming one",
            hint="call write_transactional for each batch: df.writeStream.foreachBatch, with an idempotency key of the "
            "query's id and the batch's; docs/streaming.md has the function",
        )


def _check_choices(
    store: Store | StoreSpec,
    idempotency_key: str | None,
    tx: TransactionContext | None,
    timeout: float | None,
    latest_by: str | None,
    *,
    transaction: bool,
) -> None:
    if tx is not None and (idempotency_key is not None or timeout is not None):
        raise InvalidArgument("expected idempotency_key and timeout to be the transaction's own, found them next to tx")
    if not transaction and not (tx is None and idempotency_key is None and timeout is None):
        raise InvalidArgument("expected no tx, idempotency_key or timeout with transaction=False, found one")
    if not transaction and latest_by is not None:
        raise InvalidArgument("expected no latest_by with transaction=False: each row becomes an entry, found one")
    if not transaction and not isinstance(store, StoreSpec):
        raise InvalidArgument(
            f"transaction=False: expected a StoreSpec, which each task opens, found {type(store).__name__}",
            hint="StoreSpec(url=…, secret='env:NAME')",
        )


@contextlib.contextmanager
def opened_store(store: Store | StoreSpec) -> Iterator[Store]:
    """Open a store, and check that it exists."""
    if isinstance(store, StoreSpec):
        with Store.open(store) as opened:
            _ = opened.identity
            yield opened
    else:
        _ = store.identity
        yield store


def _load(df: DataFrame, opened: OpenTransaction, target: Target, targets: Targets) -> LoadReport:
    """Write the files of a frame, and stage them under an open transaction."""
    begun = time.monotonic()
    transaction = opened.value.id
    base = begin_load(opened.database, opened)
    targets = targets.laid_out_for(opened.database, transaction)
    setup = LoadSetup(base, identity_of(opened.database).store_id, transaction, targets, target.queue, target.latest_by)
    files = collect_files(_run(df, setup, target))
    stage_files(opened, targets, files)
    return report_of(transaction, files, seconds=time.monotonic() - begun)


def _run(df: DataFrame, setup: LoadSetup, target: Target) -> list[Outcome]:
    tasks = count_tasks(df, df.sparkSession.sparkContext.defaultParallelism)
    # Only one action: a second one would write all files again.
    found = collect_outcomes(
        sorted_entries(df, target, setup.targets, tasks),
        load_task(setup),
        group=f"export-queue-load-{setup.transaction}",
        title=f"load of {target.queue or 'several queues'}, transaction {setup.transaction}",
    )
    outcomes = [Outcome.from_json(text) for text in found]
    rows_came = any(outcome.files or outcome.problem for outcome in outcomes)
    check_complete(outcomes, tasks if rows_came else len(outcomes))  # without rows, Spark runs fewer tasks
    return outcomes


def count_tasks(df: DataFrame, cores: int) -> int:
    """Choose the number of tasks: one per core, more if a task would write several files, fewer for little data."""
    size = int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
    if size >= _UNKNOWN_BYTES:
        return cores
    return max(-(-size // TARGET_BYTES), min(cores, -(-size // _SMALLEST_TASK_BYTES)), 1)
