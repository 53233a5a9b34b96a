"""Triggers: waiting on the triggerer's event loop for entries, notifications, exports, or a submitted drain."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from export_queue.core.arguments import parse_ranges, seconds, whole_number
from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.retry import Retry
from export_queue.hooks import Described, ExportQueueHook, open_store
from export_queue.hooks.tasks import recorded_state
from export_queue.polling import polled_store
from export_queue.questions import (
    ColumnQuestion,
    DriverQuestion,
    DriverSeen,
    Question,
    QueueQuestion,
    Seen,
    TokenQuestion,
)

if TYPE_CHECKING:
    from export_queue.core.drain import SubmittedDrain
    from export_queue.core.store import StoreSpec


_ending: set[asyncio.Task[None]] = set()
"""Drivers that are being ended: an event loop keeps only weak references to its tasks."""

_SILENT_SECONDS = 20.0
"""How long a driver must be silent by this process's clock too: two of its signs of life.

After an outage of the store, or if the store's clock is set forward, each driver is silent until its next sign.
"""


@dataclasses.dataclass(slots=True)
class _Silence:
    """Measures how long a driver shows no life, by this process's clock: the store's may be set back or forward.

    :param longest_step: most seconds that count between two polls. In an outage of the store no driver can show life.
    """

    drain: SubmittedDrain
    longest_step: float
    _last: DriverSeen | None = None
    _looked_at: float = 0.0
    _silent: float = 0.0
    """Seconds for which the driver was silent by the store's clock."""
    _unchanged: float = 0.0
    """Seconds since a poll that found a new sign of life."""

    def is_over(self, seen: DriverSeen, now: float) -> bool:
        """Take the answer of a poll, and return whether the driver counts as dead."""
        step, last = min(now - self._looked_at, self.longest_step), self._last
        self._last, self._looked_at = seen, now
        if last is None:
            return False
        self._silent = self._silent + step if last.state == seen.state == "silent" else 0.0
        self._unchanged = self._unchanged + step if last.sign == seen.sign else 0.0
        longest = self.drain.seconds_between(seen.sign) + _SILENT_SECONDS
        return self._silent >= _SILENT_SECONDS or self._unchanged >= longest


_ASKS = Retry(attempts=None, seconds=60.0, first_pause=1.0, longest_pause=5.0)
"""How long Airflow is asked for the state of a task before its driver is left alone."""

RESUME_SECONDS = 10.0
"""How long a deferred task stays deferred at least.

Airflow fails a task that resumes before the scheduler has noted its deferral, which takes seconds on a busy scheduler
(issues 67287 and 72716 of apache/airflow, not solved in 3.3.2).
"""


async def _wait_for_the_scheduler(trigger: BaseTrigger) -> None:
    if trigger.task_instance is not None:
        await asyncio.sleep(RESUME_SECONDS)


class InvalidTriggerArgument(InvalidArgument, TypeError):
    """An argument of a trigger is not valid.

    It is a ``TypeError`` too: any other error in a constructor ends Airflow's triggerer with all its triggers.
    """


@contextlib.contextmanager
def _checking() -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        raise InvalidTriggerArgument(error.message, hint=error.hint) from None


def _text(value: Any, *, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{what}: expected text, found {type(value).__name__}")
    return value


class StoreTrigger(BaseEventTrigger):
    """Fires when a store has work and had none before, and again for newer commits.

    No commit is missed. A commit after the last event, even between the end of older work and the next poll, causes
    another event, at the earliest ``min_interval`` after the last one. All triggers of a triggerer for one store share
    its polls and connections. On PostgreSQL a commit wakes them between two polls. A store that does not answer is
    polled again until it does. The trigger of a deferred task polls first after ten seconds, and ends with its first
    event.

    :param poll_interval: seconds between two polls.
    :param min_interval: minimum number of seconds between two events while work is pending; by default
        ``poll_interval``.
    :param export_queue_conn_id: connection of the store.
    :raises InvalidArgument: an argument is not valid.
    """

    def __init__(
        self,
        *,
        poll_interval: float = 60.0,
        min_interval: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__()
        with _checking():
            self.poll_interval = seconds(poll_interval, what="poll_interval")
            self.min_interval = (
                None if min_interval is None else seconds(min_interval, what="min_interval", may_be_zero=True)
            )
            self.export_queue_conn_id = _text(export_queue_conn_id, what="export_queue_conn_id")

    @abstractmethod
    def watched(self) -> dict[str, Any]:
        """Return the arguments that determine what is watched."""

    @abstractmethod
    def question(self, announced: Any) -> Question:
        """Ask for work, and whether a part of it is newer than what was announced."""

    @abstractmethod
    def payload(self, seen: Any) -> dict[str, Any]:
        """Return the payload of an event."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                **self.watched(),
                "poll_interval": self.poll_interval,
                "min_interval": self.min_interval,
                "export_queue_conn_id": self.export_queue_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll repeatedly, together with the other triggers that watch the store."""
        min_interval = self.poll_interval if self.min_interval is None else self.min_interval
        announced: Seen | None = None
        announced_at, interval = float("-inf"), self.poll_interval
        await _wait_for_the_scheduler(self)
        async with polled_store(self.export_queue_conn_id) as poller:
            while True:
                seen = await poller.look(self.question(announced), interval)
                interval = self.poll_interval
                if not seen.waiting:
                    announced = None
                if not seen.waiting or (announced is not None and not seen.has_news):
                    continue
                # A hint may cause a poll at any time. There are no more events than with polls at intervals.
                pause = min_interval if announced is not None else min(min_interval, self.poll_interval)
                if (left := announced_at + pause - time.monotonic()) > 0:
                    interval = min(interval, left)
                    continue
                announced, announced_at = seen, time.monotonic()
                yield TriggerEvent(self.payload(seen))
                if self.task_instance is not None:
                    return  # Airflow would cancel it, and log that a person did


class ExportQueueTrigger(StoreTrigger):
    """Fires when a queue gets entries after it was empty, and again for newer commits.

    The event's payload is ``{"queue": …, "waiting": [[first, end], …]}`` with one item for each unit that has entries;
    a third number is its layout, unless that is the queue's first one.

    :param queue_id: the queue.
    :param ranges: ranges of buckets to watch; None for all.
    :param poll_interval: seconds between two polls.
    :param min_interval: minimum number of seconds between two events while entries are pending; by default
        ``poll_interval``.
    :param export_queue_conn_id: connection of the store.
    """

    def __init__(
        self,
        *,
        queue_id: str,
        ranges: list[list[int]] | None = None,
        poll_interval: float = 60.0,
        min_interval: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__(
            poll_interval=poll_interval, min_interval=min_interval, export_queue_conn_id=export_queue_conn_id
        )
        with _checking():
            self.queue_id = _text(queue_id, what="queue_id")
            self.ranges = parse_ranges(ranges)

    def watched(self) -> dict[str, Any]:
        """Return queue and ranges."""
        return {"queue_id": self.queue_id, "ranges": self.ranges}

    def question(self, announced: Any) -> QueueQuestion:
        """Ask for entries."""
        ranges = None if self.ranges is None else tuple(map(tuple, self.ranges))
        return QueueQuestion(self.queue_id, ranges, announced)

    def payload(self, seen: Any) -> dict[str, Any]:
        """Return the units that have entries."""
        return {"queue": self.queue_id, "waiting": [unit.to_json() for unit in seen.waiting]}


class ExportQueueNotificationTrigger(StoreTrigger):
    """Fires when notifications of a column are due and there were none before, and again for newer ones.

    It consumes nothing. A notification whose observer failed is announced again when it is due again.

    The event's payload is ``{"table": …, "column": …, "rows": […], "more": …, "is_all": …}``, as
    :class:`~export_queue.sensors.ExportQueueNotificationSensor` returns it, with rows of the table's type.

    :param table: the table.
    :param column: the observed column, by :meth:`Store.watch` or :meth:`Store.observe`.
    :param limit: maximum number of rows in an event, 1 to 1000.
    :param poll_interval: seconds between two polls.
    :param min_interval: minimum number of seconds between two events while notifications are pending; by default
        ``poll_interval``.
    :param export_queue_conn_id: connection of the store.
    """

    def __init__(
        self,
        *,
        table: str,
        column: str,
        limit: int = 100,
        poll_interval: float = 60.0,
        min_interval: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__(
            poll_interval=poll_interval, min_interval=min_interval, export_queue_conn_id=export_queue_conn_id
        )
        with _checking():
            self.table = _text(table, what="table")
            self.column = _text(column, what="column")
            self.limit = whole_number(limit, what="limit", least=1)

    def watched(self) -> dict[str, Any]:
        """Return table, column and limit."""
        return {"table": self.table, "column": self.column, "limit": self.limit}

    def question(self, announced: Any) -> ColumnQuestion:
        """Ask for notifications."""
        return ColumnQuestion(self.table, self.column, self.limit, announced)

    def payload(self, seen: Any) -> dict[str, Any]:
        """Return the rows whose notifications are due."""
        return {"table": self.table, "column": self.column, **seen.waiting.to_json()}


class ExportQueueDrainedTrigger(StoreTrigger):
    """Fires when a reader's sink has acknowledged what a token stands for, and when a part of it will not arrive.

    The event's payload is ``{"token": …}``, or ``{"token": …, "failure": {"message": …, "hint": …}}``.

    :param queue_id: the reader.
    :param token: the token, by ``tx.token`` or :meth:`Store.token`.
    :param poll_interval: seconds between two polls.
    :param min_interval: as for all triggers; after the first event there is no other.
    :param export_queue_conn_id: connection of the store.
    """

    def __init__(
        self,
        *,
        queue_id: str,
        token: str,
        poll_interval: float = 60.0,
        min_interval: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__(
            poll_interval=poll_interval, min_interval=min_interval, export_queue_conn_id=export_queue_conn_id
        )
        with _checking():
            self.queue_id = _text(queue_id, what="queue_id")
            self.token = _text(token, what="token")

    def watched(self) -> dict[str, Any]:
        """Return queue and token."""
        return {"queue_id": self.queue_id, "token": self.token}

    def question(self, announced: Any) -> TokenQuestion:
        """Ask whether it is exported."""
        return TokenQuestion(self.queue_id, self.token)

    def payload(self, seen: Any) -> dict[str, Any]:
        """Return the token, and why a part of it will not arrive."""
        failure = {} if seen.failure is None else {"failure": seen.failure}
        return {"token": self.token, **failure}


class ExportQueueDriverTrigger(BaseTrigger):
    """Fires once, when a submitted drain has ended: its report is stored, or its driver shows no life any more.

    The event's payload is ``{"state": …, "drain": …, "output": …, "spark_ui": …}``, where the state is ``reported``
    or ``silent``. A store that does not answer is polled until it does. If a person marks or clears the task, the
    trigger revokes the attempt that submitted the drain, once the store answers; that ends the driver wherever it runs.
    The end of a triggerer revokes nothing.

    :param drain: the fields of a :class:`~export_queue.core.drain.SubmittedDrain`: ids and numbers.
    :param output: host and path of the driver's output, for the event; None if it is in a cluster.
    :param spark_ui: address of Spark's UI, for the event; None if it is not known.
    :param poll_interval: seconds between two polls.
    :param export_queue_conn_id: connection of the store.
    :raises InvalidArgument: an argument is not valid.
    """

    def __init__(
        self,
        *,
        drain: dict[str, Any],
        output: dict[str, str] | None = None,
        spark_ui: str | None = None,
        poll_interval: float = 5.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        from export_queue.core.drain import SubmittedDrain

        super().__init__()
        with _checking():
            self.drain = SubmittedDrain.from_dict(drain)
            self.output = None if output is None else dict(output)
            self.spark_ui = None if spark_ui is None else _text(spark_ui, what="spark_ui")
            self.poll_interval = seconds(poll_interval, what="poll_interval")
            self.export_queue_conn_id = _text(export_queue_conn_id, what="export_queue_conn_id")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "drain": dataclasses.asdict(self.drain),
                "output": self.output,
                "spark_ui": self.spark_ui,
                "poll_interval": self.poll_interval,
                "export_queue_conn_id": self.export_queue_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll repeatedly, together with the other triggers that watch the store."""
        watching = asyncio.create_task(self._watch())
        try:
            # Airflow says in the text of a cancellation that a person has acted. A connection that is being read in a
            # thread would lose that text; this wait passes it on.
            await asyncio.wait({watching})
        finally:
            watching.cancel()
        # Airflow would cancel a trigger that continues after its event, and take that for the act of a person.
        # All that the task needs is in the event, since DAG.test() drops what else is deferred.
        drain = dataclasses.asdict(self.drain)
        state = watching.result()
        yield TriggerEvent({"state": state, "drain": drain, "output": self.output, "spark_ui": self.spark_ui})

    async def _watch(self) -> str:
        question = DriverQuestion(self.drain)
        silence = _Silence(self.drain, longest_step=2 * self.poll_interval)
        await _wait_for_the_scheduler(self)
        async with polled_store(self.export_queue_conn_id) as poller:
            while True:
                seen = await poller.look(question, self.poll_interval)
                if seen.state == "reported":
                    return "reported"
                if silence.is_over(seen, time.monotonic()):
                    return "silent"

    async def on_kill(self) -> None:
        """End the driver: revoke the attempt that submitted it."""
        # Airflow cancels a trigger again every second until it has ended, and so its on_kill. This task continues.
        ending = asyncio.create_task(self._end_driver())
        _ending.add(ending)
        ending.add_done_callback(_ending.discard)
        await asyncio.wait({ending})
        ending.result()

    async def _end_driver(self) -> None:
        if await self._continues_elsewhere():
            return
        is_told = is_silent = False
        while not is_told:
            try:
                described = await ExportQueueHook(self.export_queue_conn_id).adescribe()
                await asyncio.to_thread(self._revoke, described)
                is_told = True
            except ExportQueueError as error:
                if not error.transient:
                    raise
                if not is_silent:
                    self.log.warning("Drain %s is told to stop once the store answers: %s", self.drain.drain_id, error)
                is_silent = True
                await asyncio.sleep(self.poll_interval)
        self.log.info("Drain %s was told to stop", self.drain.drain_id)

    async def _continues_elsewhere(self) -> bool:
        """Return whether no person has acted: Airflow calls ``on_kill`` too if another triggerer took the task over."""
        if self.task_instance is None:
            return False
        ask = partial(recorded_state, self.task_instance)
        try:
            state = await asyncio.to_thread(_ASKS.call, ask, worth_repeating=lambda _: True)
        except Exception as error:
            self.log.warning(
                "Drain %s is not told to stop: the task's state is not known: %s", self.drain.drain_id, error
            )
            return True
        return state == "deferred"

    def _revoke(self, described: Described[StoreSpec]) -> None:
        from export_queue.core.locks import revoke

        with open_store(described) as store:
            revoke(store.database, self.drain.task, attempt=self.drain.attempt)
