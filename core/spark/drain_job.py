"""A drain as an application with arguments, which any submitter can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from export_queue.core.drain import IfLocked, OnError
from export_queue.core.errors import ConfigurationError
from export_queue.core.queue import Range
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.arguments import DrainArguments

APPLICATION = Path(__file__).with_name("drain_main.py")

_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    # Start-up is what a submission costs: no web server, and no optimising compiler for a job whose work is in
    # Python and the databases.
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.extraJavaOptions": _QUICK_START,
    # Every line goes through the submitter's log.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    # Two copies of a task would be right but of no use: both wait for the same sink.
    "spark.speculation": "false",
}


@dataclass(frozen=True, slots=True)
class DrainJob:
    """What a submitter needs: ``spark-submit --py-files … --conf … application arguments``.

    On one machine set ``SPARK_LOCAL_IP=127.0.0.1`` in its environment, or Spark listens on the machine's address.
    """

    application: str
    """Path of the program."""
    py_files: str | None
    """Path of the archive with the library."""
    arguments: list[str]
    """Arguments of the program; they hold no secret."""
    conf: dict[str, str] = field(default_factory=lambda: dict(CONF))
    """Settings of Spark; a submitter may add to them."""
    drain_id: str = ""
    """Under which the report is found in the store."""


def drain_job(
    *,
    queue_id: str,
    sink: SinkSpec,
    store_url: str,
    drain_id: str,
    owner_task: str,
    store_schema: str = "export_queue",
    store_secret: str | None = None,
    exporter: str | None = None,
    ranges: Sequence[Range | Sequence[int]] | None = None,
    if_locked: IfLocked = "wait",
    lock_timeout: float = 600.0,
    on_error: OnError = "dead_letter",
    max_dead: int = 1000,
    max_parallel: int | None = None,
    lease_seconds: float = 30.0,
    master: str | None = None,
) -> DrainJob:
    """Describe a drain on Spark: one submission, whose tasks are the units that have work.

    :param queue_id: the queue.
    :param sink: description of the sink, with references in the place of secrets.
    :param store_url: the store, without a password.
    :param drain_id: name of this drain, under which its report is stored; a new one for each attempt.
    :param owner_task: who claims; a new submission of the same task takes over from an older one.
    :param store_schema: the PostgreSQL schema that is the store.
    :param store_secret: reference to the store's password: ``env:NAME``, ``file:/PATH`` or ``module:callable``,
        followed in the driver.
    :param exporter: import path ``module:name``; driver and executors must be able to follow it.
    :param ranges: ranges of whole units; None means all.
    :param if_locked: what to do about ranges that others hold.
    :param lock_timeout: seconds to wait for others.
    :param on_error: ``"dead_letter"`` sets rejected entries aside, ``"fail"`` stops at the first.
    :param max_dead: the most entries that may be set aside.
    :param max_parallel: the most units that are drained at once; by default as many as Spark has cores.
    :param lease_seconds: how long a dead drain keeps others out.
    :param master: Spark's master, where it is known, to refuse what cannot work.
    :returns: what to submit. The program ends with 0; with 75 where trying again may help; else with 1.
    :raises ConfigurationError: the job could not work, or would show a secret.
    """
    if master is not None:
        refuse_remote_sqlite(store_url, master)
    pairs = None if ranges is None else [_pair(part) for part in ranges]
    arguments = DrainArguments(
        queue_id=queue_id,
        sink=sink,
        store_url=store_url,
        drain_id=drain_id,
        owner_task=owner_task,
        store_schema=store_schema,
        store_secret=store_secret,
        exporter=exporter,
        ranges=pairs,
        if_locked=if_locked,
        lock_timeout=lock_timeout,
        on_error=on_error,
        max_dead=max_dead,
        max_parallel=max_parallel,
        lease_seconds=lease_seconds,
    )
    return DrainJob(
        application=str(APPLICATION),
        py_files=str(package_archive()),
        arguments=[arguments.to_json()],
        drain_id=drain_id,
    )


def refuse_remote_sqlite(store_url: str, master: str) -> None:
    """Refuse a store in a file where Spark's executors run on other machines.

    :raises ConfigurationError: they do.
    """
    if store_url.startswith("sqlite") and not master.startswith("local"):
        raise ConfigurationError(
            f"the store is a SQLite file, which executors of {master} cannot reach",
            hint="keep the store in PostgreSQL, or use a master on this machine: local[N]",
        )


def _pair(part: Range | Sequence[int]) -> list[int]:
    return part.to_json() if isinstance(part, Range) else list(part)
