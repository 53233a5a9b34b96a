"""The driver's side of a mirror load: it makes a queue's state equal to a DataFrame.

The driver draws its id and waits until all older transactions have ended; only then Spark computes the DataFrame. Rows
are distributed by ranges of buckets. Each task compares its rows with the same buckets of the state, at exactly that
cut, and writes the difference into files. The driver adds up what was counted, checks it, stages the files and commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.client import Store, TransactionContext, long_transaction
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import find_queue
from export_queue.core.segments import FileReport, begin_load
from export_queue.core.sources import StateContent, encoded_prefix
from export_queue.core.spark.action import collect_outcomes
from export_queue.core.spark.carried_secrets import references
from export_queue.core.spark.connecting import secrets_for
from export_queue.core.spark.differences import StateSetup, require_layout
from export_queue.core.spark.engine import check_driver
from export_queue.core.spark.frames import rows_by_part
from export_queue.core.spark.job_commit import check_complete, stage_files
from export_queue.core.spark.load import check_frame, count_tasks, opened_store
from export_queue.core.spark.load_tasks import LoadSetup, collect_files
from export_queue.core.spark.masters import refuse_remote_sqlite
from export_queue.core.spark.mirror_tasks import MirrorOutcome, MirrorSetup, mirror_task
from export_queue.core.spark.targets import Target
from export_queue.core.state import Found, MirrorOptions, MirrorReport, begun_mirror, check_deletes, settled_content
from export_queue.core.store import StoreSpec, identity_of
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODULES = ["pandas", "export_queue.core.spark.mirror_tasks"]

log = logging.getLogger("export_queue.load")


@dataclass(frozen=True, slots=True)
class _Job:
    """What one mirror load is about."""

    store: StoreSpec
    target: Target
    options: MirrorOptions


def mirror_frame(
    df: DataFrame | Callable[[], DataFrame],
    store: Store | StoreSpec,
    target: Target,
    options: MirrorOptions,
    *,
    tx: TransactionContext | None = None,
    timeout: float | None = None,
) -> MirrorReport:
    """Make the state equal to a frame; see :func:`export_queue.core.spark.write.write_transactional`."""
    if not isinstance(store, StoreSpec):
        raise InvalidArgument(
            f"mode='mirror': expected a StoreSpec, which each task opens, found {type(store).__name__}",
            hint="StoreSpec(url=…, secret='env:NAME')",
        )
    if target.queue is None:
        raise InvalidArgument("mode='mirror': expected one queue, found queue_column")
    with opened_store(store) as opened_here:
        if not callable(df):
            check_frame(df)
            target.find(opened_here.database, df.schema, bulk=True)
        check_driver(MODULES)
        if tx is not None:
            opened = long_transaction(tx)
            if identity_of(opened.database).store_id != opened_here.id:
                raise InvalidArgument("tx is a transaction of another store than the one given")
            opened.require_queue(target.queue)
            return _mirror(df, opened, _Job(store, target, options))
        with opened_here.database.read() as work:
            queue = find_queue(work, target.queue)
        scope, dry_run = options.scope, options.dry_run
        with begun_mirror(opened_here.database, queue, scope, dry_run=dry_run, timeout=timeout) as opened:
            report = _mirror(df, opened, _Job(store, target, options))
    log.info("%s", report.line())
    return report


def _mirror(df: DataFrame | Callable[[], DataFrame], opened: OpenTransaction, job: _Job) -> MirrorReport:
    """Write the files of the difference, and stage them under an open transaction."""
    database, target, options = opened.database, job.target, job.options
    queue_id = target.queue or ""
    queues, _ = target.queues(database, bulk=True)
    base = begin_load(database, opened)
    content = settled_content(opened, queues[queue_id], options)
    frame = df() if callable(df) else df  # only now: what it reads must have what older transactions changed
    check_frame(frame)
    targets = target.find(database, frame.schema, bulk=True).laid_out_for(database, opened.id)
    require_layout(content.reader, targets)
    load = LoadSetup(base, identity_of(database).store_id, opened.id, targets, queue_id, target.latest_by)
    found, files = _compare(frame, content, load, job)
    report = found.report(content.reader, options)
    if not options.dry_run:
        check_deletes(report, options)
        stage_files(opened, targets, files)
    return report


def _compare(
    frame: DataFrame, content: StateContent, load: LoadSetup, job: _Job
) -> tuple[Found, dict[str, list[FileReport]]]:
    """Compare the rows of a frame with the state, in the tasks of one job."""
    context, queue_id = frame.sparkSession.sparkContext, job.target.queue or ""
    refuse_remote_sqlite(context.master, job.store)
    modules = MODULES if job.store.is_sqlite else [*MODULES, "psycopg"]
    secrets = secrets_for(context, modules, references(job.store))
    queue, cores = load.targets[queue_id], context.defaultParallelism
    tasks = min(max(cores, count_tasks(frame, cores)), queue.buckets)
    setup = MirrorSetup(
        load=load,
        state=StateSetup.of(content, job.store),
        tasks=tasks,
        scope=encoded_prefix(job.options.scope),
        dry_run=job.options.dry_run,
    )
    # Only one action: a second one would write all files again.
    found = collect_outcomes(
        rows_by_part(frame, job.target, queue, tasks),
        mirror_task(setup, secrets),
        group=f"export-queue-mirror-{load.transaction}",
        title=f"mirror of {queue_id}, transaction {load.transaction}",
    )
    outcomes = [MirrorOutcome.from_json(text) for text in found]
    check_complete(outcomes, tasks)
    files, total = collect_files(outcomes), Found()
    for outcome in outcomes:
        total.add(outcome.found)
    return total, files
