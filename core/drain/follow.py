"""A follower: a drain that delivers entries soon after their commit, until it is stopped or its time is over.

A follower is a chain of drains in one process, or in one Spark application. Each *link* is an ordinary drain: it sends
the sink a fence before its first batch and after its last one, and stores a report. A link lasts at most a minute, and
starts only when something is pending. Within a link there are *rounds*: poll, claim the units that have work and that
nobody holds, drain them, and release the leases.

A hint of the store that something was committed only ends a pause early. Without hints a follower polls.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Unpack

from export_queue.core.callables import checked
from export_queue.core.drain.admission import StoreHandle
from export_queue.core.drain.binding import filled_in
from export_queue.core.drain.claims import Claims
from export_queue.core.drain.drain_run import DrainRun, count_waiting
from export_queue.core.drain.engine import Engine, Progress
from export_queue.core.drain.exporters import load_exporter, opened_exporter
from export_queue.core.drain.local import LocalEngine
from export_queue.core.drain.one_drain import concluded
from export_queue.core.drain.progress import Left
from export_queue.core.drain.promise import require_same
from export_queue.core.drain.report import Counts, DrainReport, grouped, total
from export_queue.core.drain.request import DrainOptions, DrainRequest
from export_queue.core.errors import ExportQueueError, InvalidArgument, LeaseLost
from export_queue.core.locks import begin_attempt, check_attempt, end_attempt, release_all
from export_queue.core.queue import Range, find_reader, join_ranges, queue_added_to, units_to_watch, waiting_ranges
from export_queue.core.retry import Retry, is_transient
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, opened_sink
from export_queue.core.store import Listener
from export_queue.core.transactions import take_snapshot

LINK_SECONDS = 60.0
"""Duration of a link: the time until a sink that lost data is noticed, and between two stored reports."""
ROUND_SECONDS = 1.0
"""Time for which a round starts new chunks; then others may claim what it held."""
PACE_SECONDS = 0.055
"""Least time between the starts of two rounds: a round costs the same for one entry and for hundreds."""
LONGEST_PAUSE = 0.5
"""Longest pause between two polls of an empty queue, and until a stop is noticed."""
LISTEN_AGAIN_SECONDS = 10.0
"""Least time between two attempts to listen for hints."""
ATTEMPT_SECONDS = 600.0
"""Time between two notes in the store that the attempt still works; it forgets old attempts."""
LINE_SECONDS = 30.0
"""Least time between two log lines."""

_LOOKS = Retry(first_pause=0.02, longest_pause=LONGEST_PAUSE / 1.5)
_OUTAGES = Retry(first_pause=0.5, longest_pause=20.0)
FOLLOW_RETRY = Retry(attempts=3, first_pause=0.05, longest_pause=0.2)
"""Short, because leases are held meanwhile. The follower itself waits for an unavailable store or sink."""

log = logging.getLogger("export_queue.drain")


def follow(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink | FencedSink,
    *,
    stop: Callable[[], bool],
    sink_name: str | None = None,
    **options: Unpack[DrainOptions],
) -> DrainReport:
    """Deliver entries of a queue to a sink soon after their commit, in this process, until told to stop.

    A follower waits for an unavailable store or sink. It leaves to others what they hold; any number of followers and
    drains may share a queue. It stores a report at most once a minute, under ``drain_id`` plus a number.

    :param store: an open store.
    :param queue_id: the queue.
    :param sink: a description of the sink, or an open one, which stays open.
    :param stop: returns whether to end. It is called between two chunks, and at least twice a second while the queue
        is empty.
    :param sink_name: name of the sink that the queue is bound to; see :func:`drain`.
    :param options: as for :func:`drain`, except ``if_locked`` and ``lock_timeout``. ``max_dead`` applies to each
        report; ``time_limit`` ends the follower as if it was told to stop.
    :returns: the sum of all reports.
    :raises ConfigurationError: an unknown queue or option, ranges that are not whole units, another sink, and so on.
    :raises InvalidArgument: an option that followers do not have, or a value that is not allowed.
    :raises LeaseLost: a newer attempt of the same task has taken over, or this one was revoked.
    :raises SinkError: the sink cannot be used, and waiting would not help.
    :raises DrainError: the exporter cannot be used, or too many entries were rejected.
    """
    name = sink_name or (sink.name if isinstance(sink, SinkSpec) else type(sink).__name__)
    request = DrainRequest.of(queue_id, name, follower_options(options))
    return follow_as_requested(store, sink, request, stop=stop)


def follow_as_requested(
    store: StoreHandle,
    sink: SinkSpec | Sink | FencedSink,
    request: DrainRequest,
    *,
    stop: Callable[[], bool],
) -> DrainReport:
    """Follow as a request says, whose options :func:`follower_options` returned; see :func:`follow`."""
    follower = Follower(store, request, checked(stop, "stop"))

    @contextlib.contextmanager
    def open_engines() -> Iterator[EngineOf]:
        bound_sink, bound_exporter = filled_in(store.database, request.queue_id, sink, request.exporter)
        exporter = load_exporter(bound_exporter)
        with opened_sink(bound_sink) as opened, opened_exporter(exporter, request.retry) as found:
            yield lambda link: LocalEngine(store.database, opened, found, link, follower.end_round)

    return follower.run(open_engines)


def follower_options(options: DrainOptions) -> DrainOptions:
    """Return a drain's options with a follower's defaults: it retries a step for a second only.

    :raises InvalidArgument: a follower does not have an option.
    """
    for name in ("if_locked", "lock_timeout"):
        if options.get(name) is not None:
            raise InvalidArgument(
                f"{name}: a follower never waits for other holders, found {options.get(name)!r}",
                hint="omit it, or drain without follow",
            )
    return {"retry": FOLLOW_RETRY, **{name: value for name, value in options.items() if value is not None}}  # type: ignore[typeddict-item]


EngineOf = Callable[[DrainRequest], Engine]
"""Returns the engine of one link; its resources stay open for all links."""


class RoundOver(Exception):
    """The follower is to stop, or others must have a chance to claim."""


@dataclass(slots=True)
class Follower:
    """The state of one follower.

    :param request: parameters of its drains.
    :param stop: returns whether to end.
    :param pace: least seconds between the starts of two rounds.
    :param sleep: waits for a number of seconds.
    :param clock: returns seconds; only differences count.
    """

    store: StoreHandle
    request: DrainRequest
    stop: Callable[[], bool]
    pace: float = PACE_SECONDS
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _counts: Counts = field(default_factory=Counts)
    """Counts of finished links."""
    _incomplete: tuple[str, ...] = ()
    _links: int = 0
    _wanted: tuple[Range, ...] = ()
    _number: int | None = None
    """The queue's number; a queue that was created again under the same name has another."""
    _listener: Listener | None = None
    _listened_at: float = float("-inf")
    _attempt_told_at: float = float("-inf")
    _round_end: float = float("inf")
    _line_at: float = 0.0
    _line_entries: int = 0
    _deadline: float = float("inf")
    _outage_at: float = 0.0

    def run(self, open_engines: Callable[[], AbstractContextManager[EngineOf]]) -> DrainReport:
        """Follow until told to stop.

        :param open_engines: opens sink and exporter; called once, and again after each outage.
        :returns: the sum of all links.
        """
        started_at = self._line_at = self.clock()
        if self.request.time_limit is not None:
            self._deadline = started_at + self.request.time_limit
        outages = 0
        try:
            while not self.is_over():
                opened_at = self.clock()
                try:
                    with open_engines() as engine_of:
                        self._work(engine_of)
                except Exception as error:
                    outages = 1 if self.clock() - opened_at > _OUTAGES.longest_pause else outages + 1
                    self._pause_after(error, outages)
        finally:
            self._end()
        return self._report(self.clock() - started_at)

    def is_over(self) -> bool:
        """Return whether to end: the follower was told to stop, or its time is over."""
        return self.stop() or self.clock() >= self._deadline

    def _work(self, engine_of: EngineOf) -> None:
        idle = 0
        while not self.is_over():
            if self._has_work():
                idle = 0
                self._run_link(engine_of)
            else:
                idle += 1
                self._await_hint(_LOOKS.pause(idle))
            self._log_progress()

    def _has_work(self) -> bool:
        """Check by one or two cheap queries whether entries are pending, and whether this attempt may still work."""
        database, owner = self.store.database, self.request.owner
        check_attempt(database, owner)
        with database.read() as work:
            queue = find_reader(work, self.request.queue_id)
            require_same(queue, self._number)
            units = units_to_watch(work, queue, self.request.ranges)
        self._wanted, self._number = join_ranges(units), queue.number
        if self.clock() - self._attempt_told_at >= ATTEMPT_SECONDS:
            begin_attempt(database, queue, owner)
            self._attempt_told_at = self.clock()
        snapshot = take_snapshot(database)
        with database.read() as work:
            return bool(waiting_ranges(work, queue, snapshot, units))

    def _run_link(self, engine_of: EngineOf) -> None:
        """Run one drain, for at most a minute."""
        drain_id = f"{self.request.drain_id}-{self._links + 1}"
        request = replace(self.request, drain_id=drain_id, time_limit=None)  # the limit is the follower's, not a link's
        run = DrainRun(
            self.store.database,
            self.store.id,
            request,
            self.sleep,
            self.clock,
            continues=True,
            queue_number=self._number,
        )
        engine, end = engine_of(request), self.clock() + LINK_SECONDS

        def work() -> None:
            try:
                with run.new_fence_after(engine):
                    promise = run.begin(engine)
                    with self.store.database.begin() as open_work:  # left by a link that failed
                        release_all(open_work, promise.queue, promise.wanted, self.request.owner)
                    self._run_rounds(run, engine, Claims(promise, engine.is_fenced, self.clock), end)
            except BaseException as error:
                run.continues = isinstance(error, Exception) and is_transient(error)
                raise

        try:
            report = concluded(run, work)
        finally:
            self._counts, self._incomplete = Counts(**total([self._counts, *run.parts])), run.incomplete
            self._links += bool(run.parts)
        if report.read:
            log.debug("%s", report.line())

    def _run_rounds(self, run: DrainRun, engine: Engine, claims: Claims, end: float) -> None:
        idle = 0
        while not self.is_over():
            begun = self.clock()
            self._round_end = begun + ROUND_SECONDS
            try:
                found = run.deliver_free(engine, claims)
            except RoundOver:
                if self.is_over():
                    break
                found = True
            idle = 0 if found else idle + 1
            self._log_progress(run)
            if self.clock() >= end:
                break
            if found:
                self.sleep(max(0.0, begun + self.pace - self.clock()))
            else:
                if run.has_moved():  # entries go into other buckets: the next link polls there
                    break
                self._await_hint(min(_LOOKS.pause(idle), end - self.clock()))
                check_attempt(self.store.database, self.request.owner)
        claims.promise.left = []

    def end_round(self, progress: Progress) -> None:
        """End the round between two chunks if it is time.

        :raises RoundOver: it is.
        """
        if self.is_over() or self.clock() >= self._round_end:
            raise RoundOver

    def _await_hint(self, seconds: float) -> None:
        """Wait until the store hints at a commit, or the time is over."""
        if self._listener is None and self.clock() - self._listened_at >= LISTEN_AGAIN_SECONDS:
            self._listened_at = self.clock()
            with contextlib.suppress(ExportQueueError):  # it polls
                self._listener = self._listen()
        if self._listener is None:
            self.sleep(seconds)
        elif not self._listener.wait(seconds):
            self._listener = None
            log.warning("the store sends no more hints of commits; the follower continues to poll")

    def _listen(self) -> Listener | None:
        with self.store.database.read() as work:
            number = queue_added_to(work, find_reader(work, self.request.queue_id)).number
        return self.store.database.hints.listen(self.store.id, number)

    def _pause_after(self, error: Exception, outages: int) -> None:
        """Pause after a transient error.

        :raises Exception: the error is not transient, or this attempt may not continue.
        """
        if not is_transient(error):
            raise error
        if isinstance(error, LeaseLost):
            self._require_attempt()
        pause = _OUTAGES.pause(outages)
        if outages == 1:
            self._outage_at = self.clock()
        since = f", for {self.clock() - self._outage_at:.0f} s" if outages > 1 else ""
        line = "%s: interrupted%s; next attempt in %.1f s: %s: %s"
        log.warning(line, self._title, since, pause, type(error).__name__, error)
        end = self.clock() + pause
        while not self.is_over() and (left := end - self.clock()) > 0:
            self.sleep(min(left, LONGEST_PAUSE))

    def _require_attempt(self) -> None:
        """Check whether this attempt may continue after it lost a lease.

        :raises LeaseLost: it may not.
        """
        try:
            check_attempt(self.store.database, self.request.owner)
        except LeaseLost:
            raise
        except ExportQueueError:
            return  # the store is unavailable; this is checked again before the next claim

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        with contextlib.suppress(ExportQueueError), self.store.database.begin() as work:
            end_attempt(work, self.request.owner)

    @property
    def _title(self) -> str:
        return f"{self.request.queue_id} → {self.request.sink_name}"

    def _log_progress(self, run: DrainRun | None = None) -> None:
        """Log a line about what was delivered since the last line, if it is time."""
        seconds = self.clock() - self._line_at
        if seconds < LINE_SECONDS:
            return
        brought = [self._counts, *(() if run is None else run.parts)]
        entries = sum(one.acknowledged + one.dead for one in brought)
        if entries == self._line_entries:
            return
        rate = round((entries - self._line_entries) / seconds)
        line = f"{self._title}: following; entries so far: {grouped(entries)}; {grouped(rate)} a second"
        if run is not None:
            with contextlib.suppress(ExportQueueError):
                run.count_pending()
                if run.waiting is not None and run.waiting.entries:
                    line += f"; entries left: {grouped(run.waiting.entries)}"
                    line += f"; the oldest {run.waiting.oldest_seconds:.0f} s old"
        log.info("%s", line)
        self._line_at, self._line_entries = self.clock(), entries

    def _count_waiting(self) -> Left | None:
        with contextlib.suppress(ExportQueueError):
            snapshot = take_snapshot(self.store.database)
            with self.store.database.read() as work:
                queue = find_reader(work, self.request.queue_id)
                return count_waiting(work, queue, snapshot, units_to_watch(work, queue, self.request.ranges))
        return None

    def _report(self, seconds: float) -> DrainReport:
        left = self._count_waiting()
        report = DrainReport(
            queue=self.request.queue_id,
            sink=self.request.sink_name,
            drain_id=self.request.drain_id,
            ranges=self._wanted,
            waiting=None if left is None else left.entries,
            oldest_left_seconds=0.0 if left is None else round(left.oldest_seconds, 3),
            seconds=round(seconds, 3),
            incomplete=self._incomplete,
            **total([self._counts]),
        )
        report.check()
        return report
