"""The second phase of a load: staging the files that tasks reported under the transaction that commits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from export_queue.core.errors import ConfigurationError, SparkJobFailed
from export_queue.core.segments import FileReport, begin_load, stage_segments
from export_queue.core.spark.load_report import LoadReport
from export_queue.core.spark.load_tasks import Outcome
from export_queue.core.spark.targets import Targets
from export_queue.core.transactions import OpenTransaction


def stage_files(
    opened: OpenTransaction, targets: Targets, files: Mapping[str, Sequence[FileReport]], *, share_keys: bool = False
) -> None:
    """Stage files under an open transaction, all or none.

    :param files: by queue.
    :param share_keys: whether several files of a queue may contain the same key; the entry of the last file counts.
    :raises RegistrationLost: the transaction has ended.
    :raises ConfigurationError: a file is on another machine.
    """
    # Without the abort, a caller could catch the error and commit a part of the load.
    with opened.abort_on_error():
        begin_load(opened.database, opened)  # refused if it has ended: its files may have been deleted
        for queue_id, reports in files.items():
            _check_in_reach(reports)
            stage_segments(opened.database, opened, targets.queues[queue_id], reports, share_keys=share_keys)


def _check_in_reach(reports: Sequence[FileReport]) -> None:
    """Make sure that this machine sees the local files that executors wrote."""
    for report in reports:
        if not report.file.startswith("/"):
            continue
        try:
            found = f"{Path(report.file).stat().st_size} bytes"
        except FileNotFoundError:
            found = "no file"
        if found != f"{report.bytes} bytes":
            raise ConfigurationError(
                f"file {report.file}: a task wrote {report.bytes} bytes, the driver finds {found}",
                hint="give the store a location for segments that all machines share: segments='s3://bucket/folder'",
            )


def check_complete(outcomes: Sequence[Outcome], tasks: int) -> None:
    """Make sure that each partition reported one outcome.

    :param tasks: number of partitions.
    :raises SparkJobFailed: an outcome is missing or repeated.
    """
    partitions = sorted(outcome.partition for outcome in outcomes)
    if partitions != list(range(tasks)):
        raise SparkJobFailed(f"expected one outcome from each of {tasks} tasks, found those of partitions {partitions}")


def report_of(transaction: int, files: Mapping[str, Sequence[FileReport]], *, seconds: float = 0.0) -> LoadReport:
    """Sum up the files, which are given by queue."""
    by_queue = {queue_id: [s for one in reports for s in one.slices] for queue_id, reports in files.items()}
    return LoadReport(
        transaction=transaction,
        entries=sum(part.entries for parts in by_queue.values() for part in parts),
        bytes=sum(part.bytes for parts in by_queue.values() for part in parts),
        files=sum(map(len, files.values())),
        queues={queue_id: sum(part.entries for part in parts) for queue_id, parts in by_queue.items()},
        seconds=round(seconds, 3),
    )
