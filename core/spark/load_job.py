"""A bulk load as an application with arguments, which any submitter can run; importing this needs no PySpark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from export_queue.core.errors import ConfigurationError, InvalidArgument
from export_queue.core.references import check_import_path
from export_queue.core.segments import check_base
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.arguments import START_SECONDS
from export_queue.core.spark.submitter import Submitter
from export_queue.core.spark.targets import Target
from export_queue.core.store import Database, StoreSpec

APPLICATION = Path(__file__).with_name("load_main.py")

CONF = {
    # Every line goes through the submitter's log.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    # Two copies of a task would be right but of no use: both write the same file.
    "spark.speculation": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArguments:
    """A load as its driver gets it; it holds no secret.

    :param store: the store, with a reference in the place of its password.
    :param frame: import path ``module:function``, or ``/path/script.py:function``, of a function of the session that
        returns the DataFrame.
    :param frame_arguments: further arguments of that function, by name.
    :param options: arguments of :func:`~export_queue.core.spark.write.write_transactional`, by name.
    :param problem_key: idempotency key under which the driver stores the error that it ends with.
    :param start_timeout: seconds that Spark may take to start.
    :param submitter: the process without which the driver does not go on; only where the driver runs beside it.
    :raises InvalidArgument: the arguments of the function are no JSON.
    """

    store: StoreSpec
    frame: str
    frame_arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    problem_key: str | None = None
    start_timeout: float = START_SECONDS
    submitter: Submitter | None = None

    def __post_init__(self) -> None:
        self.to_json()  # here, where the submitter sees the error

    def to_json(self) -> str:
        """Return one text."""
        try:
            return json.dumps(
                {
                    "store": json.loads(self.store.to_json()),
                    "frame": self.frame,
                    "frame_arguments": dict(self.frame_arguments),
                    "options": dict(self.options),
                    "problem_key": self.problem_key,
                    "start_timeout": self.start_timeout,
                    "submitter": None if self.submitter is None else asdict(self.submitter),
                }
            )
        except TypeError as error:
            raise InvalidArgument(f"frame_arguments: expected values of JSON: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave.

        :raises InvalidArgument: the text is no such object.
        """
        try:
            values = json.loads(text)
            values["store"] = StoreSpec.from_json(json.dumps(values["store"]))
            values["submitter"] = values["submitter"] and Submitter.from_json(values["submitter"])
            return cls(**values)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the arguments of a load as one JSON object: {error}") from None


@dataclass(frozen=True, slots=True)
class LoadJob:
    """A job as any submitter needs it: ``spark-submit --py-files … --conf … application arguments``."""

    application: str
    py_files: str
    arguments: list[str]
    conf: dict[str, str] = field(default_factory=lambda: dict(CONF))


def check_load(database: Database, arguments: LoadArguments, *, is_driver_here: bool) -> None:
    """Refuse what the driver would refuse, before it is submitted.

    :param database: of the store.
    :param is_driver_here: whether the driver runs on this machine, and reads its files.
    :raises UnknownQueue: there is no such queue.
    :raises ConfigurationError: the load could not work.
    """
    options = arguments.options
    target = Target(**{one.name: options[one.name] for one in fields(Target) if options.get(one.name) is not None})
    queues, refused = target.queues(database, bulk=True)
    if queues and len(refused) == len(queues):
        raise next(iter(refused.values()))
    check_base(database.segments)
    script, _, name = arguments.frame.rpartition(":")
    if not script.endswith(".py"):
        check_import_path(arguments.frame, error=ConfigurationError)
    elif not name.isidentifier():
        raise ConfigurationError(f"frame {arguments.frame!r}: expected /path/script.py:function")
    elif is_driver_here and not Path(script).is_file():
        raise ConfigurationError(f"frame {arguments.frame!r}: there is no file {script}")


def describe_load(arguments: LoadArguments) -> LoadJob:
    """Describe the job of a load; its report is the result of the idempotency key."""
    return LoadJob(str(APPLICATION), str(package_archive()), [arguments.to_json()])
