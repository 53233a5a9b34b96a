"""A bulk load as a job; importing this needs no PySpark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from export_queue.core.errors import ConfigurationError
from export_queue.core.queue import find_state
from export_queue.core.references import check_import_path
from export_queue.core.segments import check_base
from export_queue.core.sources import require_complete
from export_queue.core.spark.job import CONF, Job, JobArguments, describe
from export_queue.core.spark.targets import Target
from export_queue.core.spark.write import check_options
from export_queue.core.store import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArguments(JobArguments):
    """The arguments of a load's driver.

    :param frame: import path ``module:function``, or ``/path/script.py:function``, of a function of the session that
        returns the DataFrame.
    :param frame_arguments: further arguments of that function, by name; values of JSON.
    :param options: arguments of :func:`~export_queue.core.spark.write.write_transactional`, by name.
    :param report_key: of a mirror: the idempotency key whose result is its report.
    """

    kind: ClassVar[str] = "load"
    driver: ClassVar[str] = "export_queue.core.spark.load_driver"
    logger: ClassVar[str] = "export_queue"
    conf: ClassVar[Mapping[str, str]] = CONF

    frame: str
    frame_arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    report_key: str | None = None


def check_load(database: Database, arguments: LoadArguments, *, is_driver_here: bool) -> None:
    """Refuse, before the submission, a load that its driver would refuse.

    :param is_driver_here: whether the driver runs on this machine and reads its files.
    :raises UnknownQueue: the queue does not exist.
    :raises ConfigurationError: the load could not work.
    """
    options = arguments.options
    target = Target(**{one.name: options[one.name] for one in fields(Target) if options.get(one.name) is not None})
    queues, refused = target.queues(database, bulk=True)
    if queues and len(refused) == len(queues):
        raise next(iter(refused.values()))
    check_options(str(options.get("mode", "append")), options)
    if options.get("mode") == "mirror" and target.queue is not None:
        with database.read() as work:
            state = find_state(work, target.queue)
        require_complete(state, state.first_load)
    check_base(database.segments)
    script, _, name = arguments.frame.rpartition(":")
    if not script.endswith(".py"):
        check_import_path(arguments.frame, error=ConfigurationError)
    elif not name.isidentifier():
        raise ConfigurationError(f"frame {arguments.frame!r}: expected /path/script.py:function")
    elif is_driver_here and not Path(script).is_file():
        raise ConfigurationError(f"frame {arguments.frame!r}: there is no file {script}")


def describe_load(arguments: LoadArguments) -> Job:
    """Describe the job of a load. Its report is the result of the idempotency key, or of a mirror's report key."""
    return describe(Job, arguments)
