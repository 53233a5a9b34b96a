"""A Spark job: one program with arguments, which any submitter can run. Importing this needs no PySpark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from export_queue.core.errors import InvalidArgument
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.masters import check_master, refuse_remote_sqlite
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec

APPLICATION = Path(__file__).with_name("job_main.py")
START_SECONDS = 600.0
"""Seconds that a job waits for Spark; a cluster's queue may take minutes."""

CONF = {
    # each line would appear in the submitter's log
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    # a second copy of a task would repeat its work
    "spark.speculation": "false",
}
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_CONF = {
    # For jobs that work in Python and in databases, where starting Spark costs most: no web server, no optimising
    # compiler.
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.extraJavaOptions": _QUICK_START,
    **CONF,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """The arguments of a driver, sent as one text on its command line. They hold no secret.

    :param store: the store, with a reference in place of its password.
    :param start_timeout: seconds that Spark may take to start and to find an executor.
    :param submitter: the process whose death ends the driver; only if both run on one machine.
    :param problem_key: idempotency key under which the driver stores its error.
    :raises InvalidArgument: a value is not allowed.
    """

    kind: ClassVar[str] = "job"
    """What the job does, as its log calls it."""
    driver: ClassVar[str]
    """Module of the driver, whose ``run`` takes the arguments and returns the last lines of the log."""
    logger: ClassVar[str]
    """Name of the logger whose lines the submitter sees."""
    conf: ClassVar[Mapping[str, str]] = QUICK_CONF
    """Settings of Spark."""

    store: StoreSpec
    start_timeout: float = START_SECONDS
    submitter: Submitter | None = None
    problem_key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.start_timeout, int | float) or not self.start_timeout > 0:
            raise InvalidArgument(f"start_timeout: expected more than 0 seconds, found {self.start_timeout!r}")
        self.to_json()  # fails here, where the submitter sees the error

    def to_json(self) -> str:
        """Return the arguments as one text."""
        values = {one.name: _plain(getattr(self, one.name), one.name) for one in fields(self)}
        return json.dumps({"kind": self.kind, **values})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` returned.

        :raises InvalidArgument: the text does not describe such a job.
        """
        try:
            return msgspec.convert(json.loads(text), cls)
        except ValueError as error:
            if isinstance(error.__cause__, InvalidArgument):
                raise error.__cause__ from None
            raise InvalidArgument(f"expected the arguments of a {cls.kind} as one JSON object: {error}") from None


def _plain(value: Any, what: str) -> Any:
    if hasattr(value, "to_json"):
        return json.loads(value.to_json())
    if is_dataclass(value):
        return msgspec.to_builtins(value)
    try:
        return json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what}: expected values of JSON: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as any submitter needs it: ``spark-submit --py-files … --conf … application arguments``.

    On one machine set ``SPARK_LOCAL_IP=127.0.0.1`` in its environment, or Spark listens on the machine's address.
    The program exits with 0 if it succeeds, with 75 if trying again may help, and otherwise with 1.
    """

    application: str
    """Path of the program."""
    py_files: str
    """Path of the archive with the library."""
    arguments: list[str]
    """Arguments of the program; they hold no secret."""
    conf: dict[str, str] = field(default_factory=lambda: dict(QUICK_CONF))
    """Settings of Spark; a submitter may add to them."""


AnyJob = TypeVar("AnyJob", bound=Job)


def describe(
    kind: type[AnyJob],
    arguments: JobArguments,
    *,
    master: str | None = None,
    **more: str,
) -> AnyJob:
    """Describe the job for the given arguments.

    :param kind: the class of the description.
    :param master: Spark's master, if it is known, to refuse what cannot work.
    :param more: further fields of the description.
    :raises ConfigurationError: the job could not work.
    """
    if master is not None:
        check_master(master)
        refuse_remote_sqlite(master, arguments.store, getattr(arguments, "sink", None))
    return kind(
        application=str(APPLICATION),
        py_files=str(package_archive()),
        arguments=[arguments.to_json()],
        conf=dict(arguments.conf),
        **more,
    )
