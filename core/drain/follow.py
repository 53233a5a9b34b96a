"""A drain that goes on: it brings entries soon after their commit, until it is told to stop or its time is over.

A follower is a chain of drains in one process, or in one application of Spark. Each *link* is a drain as any other: it
shows the sink a fence before its first batch and behind its last one, and stores a report. It lasts a minute at most,
and as long as nothing waits there is none. Inside of a link there are *rounds*: a look, a claim of the units that have
work and that nobody holds, their draining, and the leases given back.

A hint of the store that something was committed only ends a pause early. A follower that gets none looks all the same.
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
from export_queue.core.drain.course import Course, count_waiting, require_same
from export_queue.core.drain.engine import Engine, Progress
from export_queue.core.drain.exporters import load_exporter, opened_exporter
from export_queue.core.drain.local import LocalEngine
from export_queue.core.drain.one_drain import concluded
from export_queue.core.drain.progress import Left
from export_queue.core.drain.report import Counts, DrainReport, grouped, total
from export_queue.core.drain.request import DrainOptions, DrainRequest
from export_queue.core.errors import ExportQueueError, InvalidArgument, LeaseLost
from export_queue.core.locks import begin_attempt, check_attempt, end_attempt, release_all
from export_queue.core.queue import Range, find_queue, find_reader, join_ranges, units_to_watch, waiting_ranges
from export_queue.core.retry import Retry, is_transient
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, opened_sink
from export_queue.core.store import Listener
from export_queue.core.transactions import take_snapshot

LINK_SECONDS = 60.0
"""How long a link lasts: so soon a sink that has lost data is noticed, and so seldom a report is stored."""
ROUND_SECONDS = 1.0
"""How long a round goes on with new chunks; then others may claim what it held."""
PACE_SECONDS = 0.07
"""Least time from one round to the next: each costs the same for one entry and for hundreds."""
LONGEST_PAUSE = 0.5
"""Most seconds between two looks at a queue in which nothing waits, and until a stop is noticed."""
LISTEN_AGAIN_SECONDS = 10.0
"""Least time between two attempts to listen for hints."""
ATTEMPT_SECONDS = 600.0
"""How often the store is told that the attempt still works; it forgets those that began long ago."""
LINE_SECONDS = 30.0
"""Least time between two lines of the log."""

_LOOKS = Retry(first_pause=0.02, longest_pause=LONGEST_PAUSE / 1.5)
_OUTAGES = Retry(first_pause=0.5, longest_pause=20.0)
FOLLOW_RETRY = Retry(attempts=3, first_pause=0.05, longest_pause=0.2)
"""Short, since leases are held meanwhile: the follower itself waits for a store or a sink that is away."""

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
    """Bring entries of a queue into a sink soon after their commit, in this process, until told to stop.

    A store or a sink that is away is waited for. What others hold is left to them; any number of followers and drains
    may share a queue. Reports are stored once a minute at most, under ``drain_id`` with a number behind it.

    :param store: an open store.
    :param queue_id: the queue.
    :param sink: a description of the sink, or an open one, which stays open.
    :param stop: tells whether to end; it is asked between two chunks, and twice a second at least where nothing waits.
    :param sink_name: name to which the queue is bound; as of :func:`drain`.
    :param options: those of :func:`drain` but for ``if_locked`` and ``lock_timeout``; ``max_dead`` counts by the
        minute, and ``time_limit`` ends it as if it was told to stop.
    :returns: the sum of all reports.
    :raises ConfigurationError: unknown queue or option, ranges that are no whole units, another sink, and the like.
    :raises InvalidArgument: an option that followers do not take, or a value that is not allowed.
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
    """Follow by a request, in this process; see :func:`follow`.

    :param store: an open store.
    :param sink: a description of the sink, or an open one, which stays open.
    :param request: parameters, made of :func:`follower_options`.
    :param stop: tells whether to end.
    """
    follower = Follower(store, request, checked(stop, "stop"))

    @contextlib.contextmanager
    def open_engines() -> Iterator[EngineOf]:
        bound_sink, bound_exporter = filled_in(store.database, request.queue_id, sink, request.exporter)
        exporter = load_exporter(bound_exporter)
        with opened_sink(bound_sink) as opened, opened_exporter(exporter, request.retry) as found:
            yield lambda link: LocalEngine(store.database, opened, found, link, follower.end_round)

    return follower.run(open_engines)


def follower_options(options: DrainOptions) -> DrainOptions:
    """Fill in what a follower does otherwise than a drain: steps are repeated for a second only.

    :param options: those of a drain.
    :raises InvalidArgument: an option has no meaning for a follower.
    """
    for name in ("if_locked", "lock_timeout"):
        if options.get(name) is not None:
            raise InvalidArgument(
                f"{name}: a follower leaves to others what they hold, found {options.get(name)!r}",
                hint="leave it out, or drain without follow",
            )
    return {"retry": FOLLOW_RETRY, **{name: value for name, value in options.items() if value is not None}}  # type: ignore[typeddict-item]


EngineOf = Callable[[DrainRequest], Engine]
"""Gives the engine of one link; what it works with stays open over all links."""


class RoundOver(Exception):
    """The follower was told to stop while it brought a chunk, or others must have a chance to claim."""


@dataclass(slots=True)
class Follower:
    """One follower, and how far it has come.

    :param store: an open store.
    :param request: parameters of its drains.
    :param stop: tells whether to end.
    :param pace: least seconds from one round to the next.
    :param sleep: waits for a number of seconds.
    :param clock: tells seconds; only differences count.
    """

    store: StoreHandle
    request: DrainRequest
    stop: Callable[[], bool]
    pace: float = PACE_SECONDS
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _counts: Counts = field(default_factory=Counts)
    """Of the links that have ended."""
    _incomplete: tuple[str, ...] = ()
    _links: int = 0
    _wanted: tuple[Range, ...] = ()
    _number: int | None = None
    """The number of the queue since the first look: one of the same name that was made anew has another."""
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

        :param open_engines: opens what does the work: once, and anew after each outage.
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
                    self._meet(error, outages)
        finally:
            self._end()
        return self._report(self.clock() - started_at)

    def is_over(self) -> bool:
        """Tell whether to end: the follower was told to stop, or its time is over."""
        return self.stop() or self.clock() >= self._deadline

    def _work(self, engine_of: EngineOf) -> None:
        idle = 0
        while not self.is_over():
            if self._has_work():
                idle = 0
                self._bring_link(engine_of)
            else:
                idle += 1
                self._await_hint(_LOOKS.pause(idle))
            self._tell()

    def _has_work(self) -> bool:
        """Look at the queue at the cost of a probe or two, and whether this attempt may still work."""
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

    def _bring_link(self, engine_of: EngineOf) -> None:
        """Be a drain, for a minute."""
        drain_id = f"{self.request.drain_id}-{self._links + 1}"
        request = replace(self.request, drain_id=drain_id, time_limit=None)  # the follower ends, not one of its links
        course = Course(
            self.store.database,
            self.store.id,
            request,
            self.sleep,
            self.clock,
            goes_on=True,
            queue_number=self._number,
        )
        engine, end = engine_of(request), self.clock() + LINK_SECONDS

        def work() -> None:
            try:
                with course.shown_again(engine):
                    queue = course.begin(engine)
                    with self.store.database.begin() as open_work:  # of a link that could not end in order
                        release_all(open_work, queue, course.wanted, self.request.owner)
                    self._bring_rounds(course, engine, end)
            except BaseException as error:
                course.goes_on = isinstance(error, Exception) and is_transient(error)
                raise

        try:
            report = concluded(course, work)
        finally:
            self._counts, self._incomplete = Counts(**total([self._counts, *course.parts])), course.incomplete
            self._links += bool(course.parts)
        if report.read:
            log.debug("%s", report.line())

    def _bring_rounds(self, course: Course, engine: Engine, end: float) -> None:
        idle = 0
        while not self.is_over():
            begun = self.clock()
            self._round_end = begun + ROUND_SECONDS
            try:
                found = course.bring_free(engine)
            except RoundOver:
                if self.is_over():
                    break
                found = True
            idle = 0 if found else idle + 1
            self._tell(course)
            if self.clock() >= end:
                break
            if found:
                self.sleep(max(0.0, begun + self.pace - self.clock()))
            else:
                if course.has_moved():  # into other buckets: the next link looks there
                    break
                self._await_hint(min(_LOOKS.pause(idle), end - self.clock()))
                check_attempt(self.store.database, self.request.owner)
        course.done = set(course.wanted)

    def end_round(self, progress: Progress) -> None:
        """End between two chunks where that is wanted."""
        if self.is_over() or self.clock() >= self._round_end:
            raise RoundOver

    def _await_hint(self, seconds: float) -> None:
        """Wait until the store hints that something was committed, or the time is over."""
        if self._listener is None and self.clock() - self._listened_at >= LISTEN_AGAIN_SECONDS:
            self._listened_at = self.clock()
            with contextlib.suppress(ExportQueueError):  # it looks, now and then
                self._listener = self._listen()
        if self._listener is None:
            self.sleep(seconds)
        elif not self._listener.wait(seconds):
            self._listener = None
            log.warning("hints of commits do not come any more; the queue is looked at all the same")

    def _listen(self) -> Listener | None:
        with self.store.database.read() as work:
            queue = find_reader(work, self.request.queue_id)
            number = queue.number if queue.parent is None else find_queue(work, queue.parent).number
        return self.store.database.hints.listen(self.store.id, number)

    def _meet(self, error: Exception, outages: int) -> None:
        """Wait a while after an error that passes.

        :raises Exception: any other, and the loss of the right to work.
        """
        if not is_transient(error):
            raise error
        if isinstance(error, LeaseLost):
            self._require_attempt()
        pause = _OUTAGES.pause(outages)
        if outages == 1:
            self._outage_at = self.clock()
        since = f", for {self.clock() - self._outage_at:.0f} s" if outages > 1 else ""
        line = "%s: interrupted%s; next attempt in %.1f s, until it is stopped: %s: %s"
        log.warning(line, self._title, since, pause, type(error).__name__, error)
        end = self.clock() + pause
        while not self.is_over() and (left := end - self.clock()) > 0:
            self.sleep(min(left, LONGEST_PAUSE))

    def _require_attempt(self) -> None:
        """Tell a lost lease, which the next claim replaces, from the loss of the right to work.

        :raises LeaseLost: that right was lost.
        """
        try:
            check_attempt(self.store.database, self.request.owner)
        except LeaseLost:
            raise
        except ExportQueueError:
            return  # the store is away: it is asked again before the next claim

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        with contextlib.suppress(ExportQueueError), self.store.database.begin() as work:
            end_attempt(work, self.request.owner)

    @property
    def _title(self) -> str:
        return f"{self.request.queue_id} → {self.request.sink_name}"

    def _tell(self, course: Course | None = None) -> None:
        """Write a line about what has come since the last one, if it is time."""
        seconds = self.clock() - self._line_at
        if seconds < LINE_SECONDS:
            return
        brought = [self._counts, *(() if course is None else course.parts)]
        entries = sum(one.acknowledged + one.dead for one in brought)
        if entries == self._line_entries:
            return
        rate = round((entries - self._line_entries) / seconds)
        line = f"{self._title}: following; entries so far: {grouped(entries)}; {grouped(rate)} a second"
        if course is not None:
            with contextlib.suppress(ExportQueueError):
                course.look_back()
                if course.waiting is not None and course.waiting.entries:
                    line += f"; entries left: {grouped(course.waiting.entries)}"
                    line += f"; the oldest {course.waiting.oldest_seconds:.0f} s old"
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
