"""One poller for each store of a process: it polls for any number of triggers at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from export_queue.core.arguments import seconds
from export_queue.core.errors import ExportQueueError
from export_queue.hooks import Described, ExportQueueHook, open_store
from export_queue.questions import Question, QueueQuestion, Seen, TokenQuestion

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.store import Listener, StoreSpec

_HINTED_SECONDS = 1.0
"""Minimum time between a poll and the next one that a hint causes."""
_REST = 10.0
"""The same, as a multiple of how long the poll took: hints occupy the store for a tenth of the time at most."""
_LISTEN_AGAIN_SECONDS = 60.0
_TAKE_SECONDS = 0.001

log = logging.getLogger(__name__)


_Hinted: TypeAlias = QueueQuestion | TokenQuestion
"""Questions whose answers may be others after a hint."""


@dataclass(slots=True, eq=False)
class _Ask:
    """A question without an answer yet."""

    question: Question
    interval: float
    asked: float
    """When the store was last polled for this trigger; a new trigger shares the last poll of the others."""
    answer: asyncio.Future[Any]
    poll: int = 0
    """The number of the poll that found the answer."""


@dataclass(slots=True)
class Poller:
    """Polls one store for all triggers of an event loop that watch it.

    One thread uses the store, because its drivers block; so all triggers together need one connection. On PostgreSQL a
    second one listens for hints of commits and acknowledgements. After a hint the store is polled for all questions
    whose answer a hint may change. A store that does not answer is polled again; the triggers wait and miss nothing.

    :param hook: the hook that describes the store.
    :param described: the store as the hook describes it now.
    """

    hook: ExportQueueHook
    described: Described[StoreSpec]
    users: int = 0
    """Triggers that use this poller."""
    _asks: list[_Ask] = field(default_factory=list)
    _looked_at: float = float("-inf")
    """When the last poll began."""
    _rests_until: float = float("-inf")
    """Before that, no hint causes a poll."""
    _polls: int = 0
    _served: WeakKeyDictionary[asyncio.Task[Any], int] = field(default_factory=WeakKeyDictionary)
    """The poll that each trigger was served by last, by its task in the event loop."""
    _store: Store | None = None
    _is_silent: bool = False
    """Whether the store did not answer the last poll."""
    _listener: Listener | None = None
    _heard: dict[tuple[type[_Hinted], str], int | None] = field(default_factory=dict)
    """The numbers whose hints the last poll's questions wait for, by kind of question and queue."""
    _channels: frozenset[int] = frozenset()
    """The numbers that the listener listens for."""
    _listens_again_at: float = float("-inf")
    """When to try again to listen, after it failed."""
    _watched: tuple[asyncio.AbstractEventLoop, int] | None = None
    """The listener's descriptor, and the event loop that watches it."""
    _is_hinted: bool = False
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "export-queue-poller"))
    _task: asyncio.Task[None] | None = None

    async def look(self, question: Question, interval: float) -> Any:
        """Wait for the next poll of the store.

        :param interval: seconds between two polls for this trigger; the first poll starts at once.
        :returns: the answer, in the type of the question.
        :raises ExportQueueError: the question cannot be answered: no such queue, column or units, no store.
        """
        # An invalid question fails here, without affecting others.
        interval = seconds(interval, what="interval")
        hash(question)
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._work(), name="export-queue-poller")
        task = asyncio.current_task()
        assert task is not None
        if self._served.get(task) != self._polls:  # a poll without this question may have taken a hint that concerns it
            self._is_hinted = True
        ask = _Ask(question, interval, self._looked_at, loop.create_future())
        self._asks.append(ask)
        self._asked.set()
        answer = await ask.answer
        self._served[task] = ask.poll
        return answer

    def stop(self) -> None:
        """Stop polling, and close the store after the current poll."""
        if self._task is not None:
            self._task.cancel()
        self._watch_listener(False)
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            try:
                await self._look_when_due()
            except Exception as error:  # of the poller itself: no trigger may wait for an answer that never comes
                log.exception("The poller of store %s failed; its triggers end", self.described.spec.url)
                self._looked_at = float("-inf")  # a trigger that begins now has no poll to share
                for ask in self._asks:
                    _settle(ask, error)

    async def _look_when_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked.clear()
        self._asks = [ask for ask in self._asks if not ask.answer.done()]  # answered, or their trigger has ended
        hinted = {ask for ask in self._asks if isinstance(ask.question, _Hinted)}
        due = min((ask.asked + ask.interval for ask in self._asks), default=float("inf"))
        if self._is_hinted and self._listener is not None and hinted:
            due = min(due, self._rests_until)
        if due > loop.time():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), None if due == float("inf") else due - loop.time())
            return
        begun = self._looked_at = loop.time()
        self._polls += 1
        # A trigger past half of its interval is served too, so that all share one poll from then on. So is each that
        # waits for hints, since the poll takes all that have come.
        ready = [ask for ask in self._asks if ask in hinted or ask.asked + ask.interval / 2 <= self._looked_at]
        self._is_hinted = False
        self._watch_listener(False)
        try:
            questions = {ask.question for ask in ready}
            answers = await loop.run_in_executor(self._thread, self._answer, questions)
        except Exception as error:
            await self._meet(error, ready)
        else:
            self._watch_listener(True)
            if self._is_silent:
                log.info("Store %s answers again", self.described.spec.url)
            self._is_silent = False
            for ask in ready:
                ask.poll = self._polls
                _settle(ask, answers[ask.question])
        now = loop.time()
        self._rests_until = now + max(_HINTED_SECONDS, _REST * (now - begun))
        await asyncio.sleep(0)  # the triggers ask again, so that they share the next poll, however soon it comes

    async def _meet(self, error: Exception, ready: Iterable[_Ask]) -> None:
        """Let the triggers wait if a later poll may succeed; otherwise pass them the error."""
        if not (isinstance(error, ExportQueueError) and error.transient):
            self._looked_at = float("-inf")
            for ask in ready:
                _settle(ask, error)
            return
        if not self._is_silent:
            log.warning("The store does not answer; it is polled at every interval until it does: %s", error)
        self._is_silent = True
        for ask in ready:  # no hint comes before the store answers again
            ask.asked = self._looked_at - max(0.0, ask.interval - _LISTEN_AGAIN_SECONDS)
        # The password may have changed during the outage.
        with contextlib.suppress(Exception):
            described = await self.hook.adescribe()
            if described != self.described:
                self.described = described
                await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _answer(self, questions: Iterable[Question]) -> dict[Question, Seen | Exception]:
        """Answer all questions with one snapshot."""
        from export_queue.core.transactions import take_snapshot

        if self._store is None:
            self._store = open_store(self.described)
        store = self._store
        _ = store.identity
        self._listen(store, questions)
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

    def _listen(self, store: Store, questions: Iterable[Question]) -> None:
        """Take the hints that have come, and listen for those of new questions before they are answered."""
        if self._listener is not None and not self._listener.wait(_TAKE_SECONDS):
            self._listener = None
        topics = {(type(one), one.queue_id): one for one in questions if isinstance(one, _Hinted)}
        self._heard = {
            topic: self._heard[topic] if topic in self._heard else self._number(store, question)
            for topic, question in topics.items()
        }
        channels = frozenset(number for number in self._heard.values() if number is not None)
        if not channels or (self._listener is not None and channels <= self._channels):
            return
        if self._looked_at < self._listens_again_at:
            return
        self._close_listener()
        try:
            self._listener = store.database.hints.listen(store.id, *channels)
        except Exception as error:  # it polls
            log.debug("The poller of store %s gets no hints: %s", self.described.spec.url, error)
        self._channels = channels
        if self._listener is None:
            self._listens_again_at = self._looked_at + _LISTEN_AGAIN_SECONDS

    def _number(self, store: Store, question: _Hinted) -> int | None:
        """Return the number whose hints a question waits for; None if there is no such queue."""
        try:
            with store.database.read() as work:
                return question.hints(work)
        except Exception as error:
            if isinstance(error, ExportQueueError) and error.transient:
                raise
            return None

    def _watch_listener(self, wanted: bool) -> None:
        """Begin or cease to watch the descriptor of the listener. The thread uses the listener only in between."""
        if self._watched is not None:
            loop, descriptor = self._watched
            self._watched = None
            loop.remove_reader(descriptor)
        if wanted and self._listener is not None:
            try:
                self._watched = (asyncio.get_running_loop(), self._listener.fileno())
                self._watched[0].add_reader(self._watched[1], self._take_hint)
            except Exception as error:  # it polls
                self._watched = None
                log.debug("The poller of store %s gets no hints: %s", self.described.spec.url, error)

    def _take_hint(self) -> None:
        self._watch_listener(False)
        self._is_hinted = True
        self._asked.set()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _close(self) -> None:
        self._close_listener()
        self._heard = {}
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _settle(ask: _Ask, answer: Seen | Exception) -> None:
    if ask.answer.done():
        return
    if isinstance(answer, StopIteration):  # a future does not accept this error
        ask.answer.set_exception(RuntimeError(f"the question ended with {answer!r}"))
    elif isinstance(answer, Exception):
        ask.answer.set_exception(answer)
    else:
        ask.answer.set_result(answer)


_pollers: dict[Any, Poller] = {}
"""By event loop and store; one event loop runs all triggers of a triggerer."""


@contextlib.asynccontextmanager
async def polled_store(export_queue_conn_id: str) -> AsyncIterator[Poller]:
    """Return the poller of a connection's store for a block.

    :raises ConfigurationError: the connection does not exist, or describes no store.
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
