"""Histories of deliveries to a sink: the expected records, and processes that deliver and are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from export_queue.core.errors import ExportQueueError, LeaseLost
from export_queue.core.retry import Retry
from export_queue.core.sinks import Operations, Sink

Result = TypeVar("Result")
Record = tuple[str, bytes]
"""Collection and id."""

_TRICKY = (
    "é É e\u0301 日本語 🛫 a A ' \" \\ \\N \\. \\x00 | %s %(id)s {id} {collection} : ::x * [a] ? -- $1 "
    "0 00 1e3 null NULL true \u2028"
)
TRICKY_TEXTS = (*_TRICKY.split(" "), "a ", "a  b", " ", "\t", "\n", "\r\n", "line\nline", "x" * 300)
"""Texts that wrong escaping, case folding or number parsing would change."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One operation that is delivered to a sink."""

    collection: str
    id: bytes
    seq: int
    document: bytes | None

    @property
    def record(self) -> Record:
        """Collection and id."""
        return self.collection, self.id


def operations_of(deliveries: Sequence[Delivery]) -> Operations:
    """Make a batch in which each delivery comes from its own entry."""
    return Operations(
        [d.collection for d in deliveries],
        [d.id for d in deliveries],
        [d.document for d in deliveries],
        [d.seq for d in deliveries],
        list(range(len(deliveries))),
    )


def winners(deliveries: Iterable[Delivery]) -> dict[Record, Delivery]:
    """Return the last delivery of each record by rank: the highest seq, and a put above a delete."""
    best: dict[Record, Delivery] = {}
    for new in deliveries:
        old = best.get(new.record)
        if old is None or (old.seq, old.document is not None) < (new.seq, new.document is not None):
            best[new.record] = new
    return best


def expected(deliveries: Iterable[Delivery]) -> dict[Record, bytes]:
    """Return the records that a reader sees after deliveries in any order."""
    return {record: d.document for record, d in winners(deliveries).items() if d.document is not None}


def goes_back(seen: Sequence[bytes | None], history: Iterable[Delivery]) -> str | None:
    """Check that a reader who read one record repeatedly never saw it go back.

    A document determines its sequence. A missing record was not yet written, or was deleted at the earliest sequence
    that explains it.

    :param seen: documents in the order of reading; None if the record was missing.
    :param history: all deliveries of the record.
    :returns: what is wrong, or None.
    """
    history = list(history)
    put_at = {d.document: 2 * d.seq + 1 for d in history if d.document is not None}
    deleted_at = sorted(2 * d.seq for d in history if d.document is None)
    rank = -1
    for look, document in enumerate(seen):
        if document is not None:
            if put_at[document] < rank:
                return f"look {look} saw rank {put_at[document]} after rank {rank}"
            rank = put_at[document]
        elif rank % 2 and rank > 0:
            later = [at for at in deleted_at if at > rank]
            if not later:
                return f"look {look} saw no record after rank {rank}, above which there is no delete"
            rank = later[0]
    return None


class Applier:
    """A process that delivers batches to a sink in order. After it was killed, it continues where it ended.

    It counts a batch after the sink has acknowledged it, so that the batch in flight is delivered again.

    :param make_sink: opens the sink in the process.
    """

    def __init__(self, make_sink: Callable[[], Sink], batches: Sequence[Sequence[Delivery]]) -> None:
        self._context = multiprocessing.get_context("fork")
        self._make_sink = make_sink
        self._batches = [operations_of(batch) for batch in batches]
        # no lock: a killed process would never release it
        self._done: Any = self._context.RawValue("q", 0)
        self._beside: Applier | None = None
        self._process: multiprocessing.process.BaseProcess | None = None

    def keep_step_with(self, other: Applier) -> None:
        """Start each batch at the same moment as another applier. Call this before either starts."""
        self._beside, other._beside = other, self

    def follow(self, other: Applier) -> None:
        """Start each batch after another applier has finished as many. Call this before this one starts."""
        self._beside = other

    @property
    def done(self) -> int:
        """The number of acknowledged batches."""
        return int(self._done.value)

    def __enter__(self) -> Applier:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start, or continue."""
        self._process = self._context.Process(target=end_after, args=(self._deliver,))
        self._process.start()

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None:
            kill(self._process)
            self._process = None

    def kill_after(self, batches: int, delay: float) -> None:
        """Kill the process a moment after it has finished some more batches."""
        goal = min(self.done + batches, len(self._batches))
        self.wait(lambda: self.done >= goal)
        time.sleep(delay)  # not a wait: it spreads the kills over the next batch
        self.kill()

    def finish(self) -> None:
        """Wait until all batches are acknowledged."""
        self.wait(lambda: self.is_finished)
        self.kill()

    @property
    def is_finished(self) -> bool:
        """Whether all batches are acknowledged."""
        finished = self.done == len(self._batches)
        assert finished or self._is_alive, "the applier failed; see its output"
        return finished

    @property
    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def wait(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for a condition. Fail if the process has failed or makes no progress."""
        done, limit = -1, 0.0
        while not condition():
            if self.done != done:
                done, limit = self.done, time.monotonic() + seconds
            assert self._is_alive or condition(), "the applier failed; see its output"
            assert time.monotonic() < limit, f"the applier makes no progress after {done} batches, for {seconds} s"
            time.sleep(0.001)

    def _deliver(self) -> None:
        sink = self._make_sink()
        sink.admit(queue_id="conformance", store_id="conformance", fence=1)
        while self.done < len(self._batches):
            while self._beside is not None and self._beside.done < self.done:
                pass  # without a pause, so that both really start together
            apply_patiently(sink, self._batches[self.done])
            self._done.value += 1


def patiently(step: Callable[[], Result]) -> Result:
    """Run a step, and retry transient errors except a lost claim."""
    return Retry(attempts=50, first_pause=0.0005, longest_pause=0.01).call(
        step,
        worth_repeating=lambda error: (
            isinstance(error, ExportQueueError) and error.transient and not isinstance(error, LeaseLost)
        ),
    )


def apply_patiently(sink: Sink, operations: Operations) -> None:
    """Apply a batch, and retry transient errors. No operation may be rejected."""
    result = patiently(lambda: sink.apply(operations))
    assert not result.rejected, result.rejected


def end_after(work: Callable[[], None]) -> None:
    """Do the work of a forked process, and end the process without clean-up: what it inherited is its parent's.

    A lost claim is a good end.
    """
    try:
        work()
    except LeaseLost:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill(process: multiprocessing.process.BaseProcess) -> None:
    """Kill a process, whatever it does."""
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def shuffled_batches(deliveries: Sequence[Delivery], generator: random.Random, size: int) -> list[list[Delivery]]:
    """Make batches of all deliveries in random order, some of them twice."""
    everything = [*deliveries, *generator.sample(list(deliveries), len(deliveries) // 5)]
    generator.shuffle(everything)
    return [everything[i : i + size] for i in range(0, len(everything), size)]


def visible(found: Mapping[Record, bytes], deliveries: Iterable[Delivery]) -> dict[Record, bytes]:
    """Return those of the found records that the deliveries concern."""
    records = {d.record for d in deliveries}
    return {record: document for record, document in found.items() if record in records}
