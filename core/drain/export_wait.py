"""Waiting until a reader's sink has acknowledged everything that a transaction added."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from export_queue.core.arguments import seconds as checked_seconds
from export_queue.core.drain.admission import StoreHandle
from export_queue.core.drain.binding import filled_in
from export_queue.core.drain.exported import Standing, explained, is_exported
from export_queue.core.drain.token import ExportToken
from export_queue.core.errors import ExportQueueError, ExportTimedOut, InvalidArgument, SinkConfigurationError
from export_queue.core.queue import find_reader
from export_queue.core.retry import Retry
from export_queue.core.sinks import FencedSink, SearchableSink, Sink, SinkSpec, call_sink, opened_sink
from export_queue.core.store import Listener, acknowledgements_of

SHARE = 0.1
"""Pause between two looks, as a share of the time waited so far: an answer is late by a tenth at most."""
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.5
LOOKS = 4.0
"""Least pause as a multiple of the duration of a look, if a look does not read a few buckets only."""
LISTEN_AFTER_SECONDS = 1.0
"""Time after which a wait opens a connection of its own for hints."""
REFRESHING = Retry(attempts=5, first_pause=0.05, longest_pause=1.0)


@dataclass(slots=True)
class ExportWait:
    """One wait.

    :param sleep: waits for a number of seconds.
    :param clock: returns seconds; only differences count.
    """

    store: StoreHandle
    token: ExportToken
    reader_id: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _listener: Listener | None = None
    _may_listen: bool = field(default=True)

    def run(self, timeout: float) -> None:
        """Wait.

        :raises ExportTimedOut: the time is over.
        """
        begun = self.clock()
        standing: Standing | None = None
        try:
            while True:
                looked_at = self.clock()
                standing = is_exported(self.store.database, self.token, self.reader_id, since=standing)
                if standing.is_exported:
                    return
                now = self.clock()
                left = begun + timeout - now
                if left <= 0:
                    raise self._timed_out(standing, now - begun)
                pause = max(FIRST_PAUSE, SHARE * (now - begun))
                if not standing.is_narrow:
                    pause = max(pause, LOOKS * (now - looked_at))
                self._pause(min(pause, LONGEST_PAUSE, left), now - begun)
        finally:
            if self._listener is not None:
                self._listener.close()

    def _pause(self, seconds: float, waited: float) -> None:
        """Pause, or wait for a hint of an acknowledgement if the wait takes long."""
        if waited >= LISTEN_AFTER_SECONDS and self._may_listen and self._listener is None:
            with contextlib.suppress(ExportQueueError):  # it polls
                self._listener = self._listen()
            self._may_listen = self._listener is not None
        if self._listener is None:
            self.sleep(seconds)
        elif not self._listener.wait(seconds):
            self._listener, self._may_listen = None, False

    def _listen(self) -> Listener | None:
        with self.store.database.read() as work:
            number = find_reader(work, self.reader_id).number
        return self.store.database.hints.listen(self.store.id, acknowledgements_of(number))

    def _timed_out(self, standing: Standing, waited: float) -> ExportTimedOut:
        text, hint = explained(self.store.database, self.token, self.reader_id, standing)
        return ExportTimedOut(
            f"{self.reader_id}: {self.token.name} was not exported within {waited:.1f} s: {text}",
            hint=hint or None,
        )


def wait_exported(
    store: StoreHandle,
    text: str,
    reader_id: str,
    *,
    timeout: float = 30.0,
    searchable: bool = False,
    sink: SinkSpec | Sink | FencedSink | None = None,
) -> None:
    """Wait, as :meth:`Store.wait_exported` says."""
    timeout = checked_seconds(timeout, what="timeout", may_be_zero=True)
    token = ExportToken.parse(text, store_id=store.id)
    if searchable and sink is None:
        raise InvalidArgument(
            "searchable: expected the sink of the reader, which is asked to show what it has acknowledged",
            hint="pass sink=…, a description or an open sink",
        )
    with _searchable(store, reader_id, sink) if searchable and sink is not None else contextlib.nullcontext() as shows:
        ExportWait(store, token, reader_id).run(timeout)
        if shows is not None:
            REFRESHING.call(lambda: call_sink(shows, "refresh"))


@contextlib.contextmanager
def _searchable(store: StoreHandle, reader_id: str, sink: SinkSpec | Sink | FencedSink) -> Iterator[SearchableSink]:
    """Open the sink before the wait, so that one that cannot be refreshed is refused at once."""
    bound, _ = filled_in(store.database, reader_id, sink, None)
    with opened_sink(bound) as opened:
        if not isinstance(opened, SearchableSink):
            raise SinkConfigurationError(
                f"searchable: expected a sink with searches, such as Elasticsearch; {type(opened).__name__} has no "
                "method refresh",
                hint="omit searchable: what a sink without searches has acknowledged can be read at once",
            )
        yield opened
