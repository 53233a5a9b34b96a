"""What a drain job is told: plain values and references to secrets, as one text on its command line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from export_queue.core.drain import DrainRequest, IfLocked, OnError, Rules
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.locks import Owner
from export_queue.core.references import has_password, is_reference
from export_queue.core.sinks import SinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainArguments:
    """A drain as its driver gets it; see :func:`drain_job` for the meaning of each.

    :raises InvalidArgument: a password stands where everybody could read it.
    """

    queue_id: str
    sink: SinkSpec
    store_url: str
    drain_id: str
    owner_task: str
    store_schema: str = "export_queue"
    store_secret: str | None = None
    exporter: str | None = None
    ranges: Sequence[Sequence[int]] | None = None
    if_locked: IfLocked = "wait"
    lock_timeout: float = 600.0
    on_error: OnError = "dead_letter"
    max_dead: int = 1000
    max_parallel: int | None = None
    lease_seconds: float = 30.0

    def __post_init__(self) -> None:
        if has_password(self.store_url):
            raise InvalidArgument(
                "store_url holds a password, which a command line would show",
                hint="leave it out, and name it: store_secret='env:NAME', 'file:/PATH' or 'module:callable'",
            )
        if self.store_secret is not None and not is_reference(self.store_secret):
            raise InvalidArgument("store_secret is a reference: env:NAME, file:/PATH or module:callable")
        if self.exporter is not None and not isinstance(self.exporter, str):
            raise InvalidArgument('exporter: expected an import path "module:name", which executors can follow too')
        if self.max_parallel is not None and self.max_parallel < 1:
            raise InvalidArgument(f"max_parallel: expected a whole number from 1, found {self.max_parallel!r}")
        self.request()  # both check what they are given, here where the submitter sees it
        self.rules()

    def request(self) -> DrainRequest:
        """Make the request; each call is another attempt of the same task."""
        return DrainRequest(
            queue_id=self.queue_id,
            sink_name=self.sink.name,
            ranges=self.ranges,
            if_locked=self.if_locked,
            lock_timeout=self.lock_timeout,
            owner=Owner(self.owner_task, uuid.uuid4().hex),
            drain_id=self.drain_id,
            lease_seconds=self.lease_seconds,
        )

    def rules(self) -> Rules:
        """Say what is done about rejected entries."""
        return Rules(drain=self.drain_id, on_error=self.on_error, max_dead=self.max_dead)

    def to_json(self) -> str:
        """Return one text; it holds no secret."""
        # field by field: asdict would go into the sink's description, which has a form of its own
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps(values | {"sink": json.loads(self.sink.to_json())})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave.

        :raises InvalidArgument: the text is not such an object.
        """
        try:
            values = json.loads(text)
            return cls(**values | {"sink": SinkSpec.from_dict(values["sink"])})
        except (ValueError, KeyError, TypeError, SinkConfigurationError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the arguments of a drain job as one JSON object: {error}") from None
