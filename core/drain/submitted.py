"""A drain that a driver does and nobody waits for: the store shows whether it has ended, and whether it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import msgspec

from export_queue.core.drain.request import DrainRequest
from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import Owner, last_sign
from export_queue.core.store import Database, Reading, queries

SILENT_SECONDS = 60.0
"""A driver that has begun and has shown no life for this time counts as dead."""

DriverState = Literal["starting", "running", "silent", "reported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedDrain:
    """A submitted drain; a value of plain fields for other processes.

    :param task: the task that submitted it.
    :param attempt: the attempt of the task; revoking it ends the driver.
    :param drain_id: the id of the report.
    :param since_ms: when the attempt began, by the store's clock.
    :param start_timeout: seconds that the driver may take to begin.
    """

    task: str
    attempt: str
    drain_id: str
    since_ms: int
    start_timeout: float

    @classmethod
    def of(cls, database: Database, request: DrainRequest, *, start_timeout: float) -> Self:
        """Describe a drain that is about to be submitted; its attempt has begun."""
        owner = request.owner
        with database.read() as work:
            since_ms = last_sign(work, owner)
        assert since_ms is not None
        return cls(
            task=owner.task,
            attempt=owner.attempt,
            drain_id=request.drain_id,
            since_ms=since_ms,
            start_timeout=start_timeout,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the fields of a value.

        :raises InvalidArgument: they are not those of a submitted drain.
        """
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"drain: expected the fields of a submitted drain: {error}") from None

    def state(self, work: Reading) -> DriverState:
        """Find out how the drain stands.

        :returns: ``reported`` if its report is stored, whether it succeeded or not; ``silent`` if the driver is dead or
            did not begin in time; ``starting`` or ``running`` if it is neither.
        """
        return self.observe(work)[0]

    def observe(self, work: Reading) -> tuple[DriverState, int | None]:
        """Find out how the drain stands.

        :returns: the state, and the driver's last sign of life, which grows with each sign, whatever the clock does;
            None if the attempt is not on record any more.
        """
        sign = last_sign(work, Owner(self.task, self.attempt))
        # after the sign: the end of a drain stores the report and removes the attempt in one transaction
        if queries.reports.find_reports(work, drain_id=self.drain_id, limit=1):
            return "reported", sign
        if sign is None or work.now() - sign > self.seconds_between(sign) * 1000:
            return "silent", sign
        return ("running" if sign > self.since_ms else "starting"), sign

    def seconds_between(self, sign: int | None) -> float:
        """Return how long a driver that lives may take from a sign of life to its next one.

        :param sign: the time of its last sign; until it begins, when the attempt began.
        """
        return SILENT_SECONDS if sign is not None and sign > self.since_ms else self.start_timeout
