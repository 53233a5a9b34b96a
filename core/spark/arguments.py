"""The arguments of a drain job's driver: plain values and references to secrets, as one text on its command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from export_queue.core.drain import DrainRequest
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec

START_SECONDS = 600.0
"""How long a drain waits for Spark: a cluster's queue may take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainArguments:
    """A drain as its driver gets it.

    :param store: the store, with a reference in the place of its password.
    :param sink: the sink, with references in the place of secrets.
    :param request: parameters of the drain; its exporter is an import path.
    :param max_parallel: the most tasks that drain at once; by default Spark's cores decide.
    :param start_timeout: seconds that Spark may take to start, and to find an executor.
    :param submitter: the process without which the driver does not go on; only where the driver runs beside it.
    :param follow: whether the drain goes on until it is told to stop.
    :raises InvalidArgument: the exporter is an object, or a value is not allowed.
    """

    store: StoreSpec
    sink: SinkSpec
    request: DrainRequest
    max_parallel: int | None = None
    start_timeout: float = START_SECONDS
    submitter: Submitter | None = None
    follow: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.start_timeout, int | float) or not self.start_timeout > 0:
            raise InvalidArgument(f"start_timeout: expected more than 0 seconds, found {self.start_timeout!r}")
        if self.max_parallel is not None and (type(self.max_parallel) is not int or self.max_parallel < 1):
            raise InvalidArgument(f"max_parallel: expected a whole number from 1, found {self.max_parallel!r}")
        self.request.to_json()  # here, where the submitter sees the error

    def to_json(self) -> str:
        """Return one text; it holds no secret."""
        return json.dumps(
            {
                "store": json.loads(self.store.to_json()),
                "sink": json.loads(self.sink.to_json()),
                "request": json.loads(self.request.to_json()),
                "max_parallel": self.max_parallel,
                "start_timeout": self.start_timeout,
                "submitter": None if self.submitter is None else self.submitter.to_json(),
                "follow": self.follow,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave.

        :raises InvalidArgument: the text is not such an object.
        """
        try:
            values = json.loads(text)
            return cls(
                store=StoreSpec.from_json(json.dumps(values["store"])),
                sink=SinkSpec.from_dict(values["sink"]),
                request=DrainRequest.from_json(json.dumps(values["request"])),
                max_parallel=values["max_parallel"],
                start_timeout=values["start_timeout"],
                submitter=None if values["submitter"] is None else Submitter.from_json(values["submitter"]),
                follow=values["follow"],
            )
        except (ValueError, KeyError, TypeError, SinkConfigurationError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the arguments of a drain job as one JSON object: {error}") from None
