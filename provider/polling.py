"""One poller for each store of a process: it asks the store for any number of triggers, in one look an interval."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from export_queue.core.arguments import seconds
from export_queue.core.errors import ExportQueueError
from export_queue.hooks import Described, ExportQueueHook, open_store

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.observers import ColumnSighting, WaitingRows
    from export_queue.core.queue import Sighting
    from export_queue.core.store import Reading, Snapshot, StoreSpec

log = logging.getLogger(__name__)


class Seen(Protocol):
    """What every answer tells."""

    @property
    def waiting(self) -> Sized | WaitingRows:
        """What waits; false if nothing does."""

    @property
    def has_news(self) -> bool:
        """Whether some of it is newer than what the trigger announced."""


class Question(Protocol):
    """A trigger's question: what waits, and is some of it newer than what the trigger announced?

    Questions are hashable; triggers that ask the same share the answer.
    """

    def answer(self, work: Reading, snapshot: Snapshot) -> Seen:
        """Look at the store.

        :raises ExportQueueError: the question cannot be answered.
        """


@dataclass(frozen=True, slots=True)
class QueueQuestion:
    """Ask for entries of a queue."""

    queue_id: str
    ranges: tuple[tuple[int, ...], ...] | None
    since: Sighting | None = None

    def answer(self, work: Reading, snapshot: Snapshot) -> Sighting:
        """Look for entries."""
        from export_queue.core.queue import find_reader, look, units_to_watch

        queue = find_reader(work, self.queue_id)
        units = units_to_watch(work, queue, self.ranges)
        return look(work, queue, snapshot, units, since=self.since)


@dataclass(frozen=True, slots=True)
class ColumnQuestion:
    """Ask for notifications of a column."""

    table: str
    column: str
    limit: int
    since: ColumnSighting | None = None

    def answer(self, work: Reading, snapshot: Snapshot) -> ColumnSighting:
        """Look for notifications."""
        from export_queue.core.observers import look

        return look(work, self.table, self.column, snapshot, limit=self.limit, since=self.since)


@dataclass(slots=True, eq=False)
class _Ask:
    """One question that waits for its answer."""

    question: Question
    interval: float
    asked: float
    """When the store was last looked at for this trigger; a new trigger shares the last look of the others."""
    answer: asyncio.Future[Any]


@dataclass(slots=True)
class Poller:
    """Looks at one store for all triggers of an event loop that watch it.

    The store is used by one thread, since its drivers block; so all triggers together take one connection. A store
    that does not answer is asked again at the next interval; triggers wait, and miss nothing.

    :param hook: the hook that describes the store.
    :param described: the store as the hook describes it now.
    """

    hook: ExportQueueHook
    described: Described[StoreSpec]
    users: int = 0
    """Triggers that use this poller."""
    _asks: list[_Ask] = field(default_factory=list)
    _looked_at: float = float("-inf")
    _store: Store | None = None
    _is_silent: bool = False
    """Whether the store did not answer the last look."""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "export-queue-poller"))
    _task: asyncio.Task[None] | None = None

    async def look(self, question: Question, interval: float) -> Any:
        """Wait for the next look at the store.

        :param question: what is asked.
        :param interval: seconds between two looks for this trigger; the first look of a poller comes at once.
        :returns: the answer, of the question's own type.
        :raises ExportQueueError: the question cannot be answered: no such queue, column or units, no store.
        """
        # What is wrong with one ask is found here, where it fails alone.
        interval = seconds(interval, what="interval")
        hash(question)
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._work(), name="export-queue-poller")
        ask = _Ask(question, interval, self._looked_at, loop.create_future())
        self._asks.append(ask)
        self._asked.set()
        return await ask.answer

    def stop(self) -> None:
        """Stop looking, and close the store behind a look that is under way."""
        if self._task is not None:
            self._task.cancel()
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            try:
                await self._look_when_due()
            except Exception as error:  # of the poller itself: no trigger may wait for an answer that nobody gives
                log.exception("The poller of store %s failed; its triggers end", self.described.spec.url)
                for ask in self._asks:
                    _settle(ask, error)

    async def _look_when_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked.clear()
        self._asks = [ask for ask in self._asks if not ask.answer.done()]  # answered, or their trigger has gone
        due = min((ask.asked + ask.interval for ask in self._asks), default=float("inf"))
        if due > loop.time():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), None if due == float("inf") else due - loop.time())
            return
        self._looked_at = loop.time()
        # A trigger that is past the half of its interval is served too: then all come in one look from there on.
        ready = [ask for ask in self._asks if ask.asked + ask.interval / 2 <= self._looked_at]
        try:
            questions = {ask.question for ask in ready}
            answers = await loop.run_in_executor(self._thread, self._answer, questions)
        except Exception as error:
            await self._meet(error, ready)
        else:
            if self._is_silent:
                log.info("Store %s answers again", self.described.spec.url)
            self._is_silent = False
            for ask in ready:
                _settle(ask, answers[ask.question])

    async def _meet(self, error: Exception, ready: Iterable[_Ask]) -> None:
        """Let the triggers wait on while trying again may help; else hand the error to them."""
        if not (isinstance(error, ExportQueueError) and error.transient):
            for ask in ready:
                _settle(ask, error)
            return
        if not self._is_silent:
            log.warning("The store does not answer; it is asked at every interval until it does: %s", error)
        self._is_silent = True
        for ask in ready:
            ask.asked = self._looked_at
        # The password may have changed with the outage.
        with contextlib.suppress(Exception):
            described = await self.hook.adescribe()
            if described != self.described:
                self.described = described
                await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _answer(self, questions: Iterable[Question]) -> dict[Question, Seen | Exception]:
        """Look at the store for all questions, by one snapshot."""
        from export_queue.core.transactions import take_snapshot

        if self._store is None:
            self._store = open_store(self.described)
        store = self._store
        _ = store.identity
        answers: dict[Question, Seen | Exception] = {}
        snapshot = take_snapshot(store.database)
        for question in questions:
            try:
                with store.database.read() as work:
                    answers[question] = question.answer(work, snapshot)
            except Exception as error:
                if isinstance(error, ExportQueueError) and error.transient:
                    raise
                answers[question] = error
        return answers

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _settle(ask: _Ask, answer: Seen | Exception) -> None:
    if ask.answer.done():
        return
    if isinstance(answer, StopIteration):  # a future takes no such error
        ask.answer.set_exception(RuntimeError(f"the question ended with {answer!r}"))
    elif isinstance(answer, Exception):
        ask.answer.set_exception(answer)
    else:
        ask.answer.set_result(answer)


_pollers: dict[Any, Poller] = {}
"""By event loop and store; an event loop of a triggerer has all its triggers."""


@contextlib.asynccontextmanager
async def polled_store(export_queue_conn_id: str) -> AsyncIterator[Poller]:
    """Lend the poller of the store that a connection leads to.

    :param export_queue_conn_id: id of the connection.
    :raises ConfigurationError: there is no such connection, or it leads to no store.
    """
    hook = ExportQueueHook(export_queue_conn_id)
    described = await hook.adescribe()
    key = (asyncio.get_running_loop(), described.spec, tuple(sorted(described.variables.items())))
    poller = _pollers.get(key)
    if poller is None:
        poller = _pollers[key] = Poller(hook, described)
    poller.users += 1
    try:
        yield poller
    finally:
        poller.users -= 1
        if not poller.users:
            del _pollers[key]
            poller.stop()
