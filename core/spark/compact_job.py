"""A compaction as an application with arguments, which any submitter can run; importing this needs no PySpark."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import Owner
from export_queue.core.segments import Candidates
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.arguments import START_SECONDS
from export_queue.core.spark.drain_job import CONF
from export_queue.core.spark.masters import check_master, refuse_remote_sqlite
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec

APPLICATION = Path(__file__).with_name("compact_main.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactArguments:
    """A compaction as its driver gets it; it holds no secret.

    :param store: the store, with a reference in the place of its password.
    :param queue_id: a queue without subscriptions, or a subscription.
    :param owner: the task; a newer attempt of it takes over from an older one.
    :param wanted: what is worth it.
    :param start_timeout: seconds that Spark may take to start, and to find an executor.
    :param submitter: the process without which the driver does not go on; only where the driver runs beside it.
    """

    store: StoreSpec
    queue_id: str
    owner: Owner
    wanted: Candidates
    start_timeout: float = START_SECONDS
    submitter: Submitter | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.start_timeout, int | float) or not self.start_timeout > 0:
            raise InvalidArgument(f"start_timeout: expected more than 0 seconds, found {self.start_timeout!r}")

    @property
    def report_key(self) -> str:
        """The idempotency key whose result is the report, as its ``summary()`` gives it."""
        return f"compaction/{self.owner.attempt}"

    @property
    def problem_key(self) -> str:
        """The idempotency key under which the driver stores the error that it ends with."""
        return f"{self.report_key}/problem"

    def to_json(self) -> str:
        """Return one text."""
        return json.dumps(
            {
                "store": json.loads(self.store.to_json()),
                "queue_id": self.queue_id,
                "owner": asdict(self.owner),
                "wanted": asdict(self.wanted),
                "start_timeout": self.start_timeout,
                "submitter": None if self.submitter is None else self.submitter.to_json(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave.

        :raises InvalidArgument: the text is no such object.
        """
        try:
            values = json.loads(text)
            values["store"] = StoreSpec.from_json(json.dumps(values["store"]))
            values["owner"] = Owner(**values["owner"])
            values["wanted"] = Candidates(**values["wanted"])
            values["submitter"] = values["submitter"] and Submitter.from_json(values["submitter"])
            return cls(**values)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the arguments of a compaction as one JSON object: {error}") from None


@dataclass(frozen=True, slots=True)
class CompactJob:
    """A job as any submitter needs it: ``spark-submit --py-files … --conf … application arguments``."""

    application: str
    """Path of the program."""
    py_files: str
    """Path of the archive with the library."""
    arguments: list[str]
    """Arguments of the program; they hold no secret."""
    report_key: str
    """The idempotency key whose result is the report, with the number of units in the place of each."""
    problem_key: str
    """The idempotency key whose result is the error that the driver ended with."""
    conf: dict[str, str] = field(default_factory=lambda: dict(CONF))
    """Settings of Spark; a submitter may add to them."""


def compact_job(
    *,
    queue_id: str,
    store: StoreSpec,
    wanted: Candidates | None = None,
    owner: Owner | None = None,
    master: str | None = None,
    start_timeout: float = START_SECONDS,
    submitter: Submitter | None = None,
) -> CompactJob:
    """Describe a compaction on Spark: its driver locks and publishes, its tasks read and write.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param store: description of the store, with a reference in the place of its password.
    :param wanted: what is worth it.
    :param owner: the task; a newer attempt of it takes over from an older one. By default one that nobody shares.
    :param master: Spark's master, where it is known, to refuse what cannot work.
    :param start_timeout: seconds that Spark may take to start, and to find an executor.
    :param submitter: ``Submitter.here()`` where the driver runs beside this process and shall end with it.
    :returns: what to submit. The program ends with 0; with 75 where trying again may help; else with 1.
    :raises ConfigurationError: the job could not work.
    """
    if master is not None:
        check_master(master)
        refuse_remote_sqlite(master, store)
    arguments = CompactArguments(
        store=store,
        queue_id=queue_id,
        owner=owner or Owner.unique(),
        wanted=wanted or Candidates(),
        start_timeout=start_timeout,
        submitter=submitter,
    )
    return CompactJob(
        str(APPLICATION), str(package_archive()), [arguments.to_json()], arguments.report_key, arguments.problem_key
    )
