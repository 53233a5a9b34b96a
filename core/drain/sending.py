"""Sending operations to a sink in batches, with retries, and one by one to isolate rejected ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.exporters import Failure
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import DrainError, ExportQueueError, SinkConfigurationError, text_of
from export_queue.core.interruptions import raised_by_handler
from export_queue.core.retry import Retry, is_transient
from export_queue.core.sinks import ApplyResult, Operations, Sink, call_sink, isolate


@dataclass(slots=True)
class Sent:
    """The results of the operations that were sent."""

    written: int = 0
    stale: int = 0
    rejected: list[tuple[int, Failure]] = field(default_factory=list)
    """Position and reason of each operation that the sink rejects permanently."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends operations to one sink.

    :param retry: how transient errors are retried.
    :param check: called before each batch; raises LeaseLost if nothing more may be sent.
    :param on_sent: called after each batch that may have reached the sink.
    """

    sink: Sink
    retry: Retry
    check: Callable[[], None]
    on_sent: Callable[[], None] | None = None

    def send(self, operations: Operations, *, on_rejected: Callable[[int, Failure], None]) -> Sent:
        """Send operations in slices of the size that the sink prefers.

        Rejected operations are sent once more without the others. If the sink raises an unknown error, the batch is
        halved until the failing operations are isolated.

        :param on_rejected: called with position and reason of each permanent rejection; may raise to stop.
        :raises ExportQueueError: the sink is unavailable for longer than the retry lasts, or accepts nothing.
        """
        sent = Sent()
        capabilities = self.sink.capabilities
        start = 0
        for part in operations.slices(rows=capabilities.batch_rows, size=capabilities.batch_bytes):
            self._send(part, range(start, start + len(part)), sent, on_rejected, is_last_try=False)
            start += len(part)
        return sent

    def _send(
        self,
        part: Operations,
        positions: Sequence[int],
        sent: Sent,
        on_rejected: Callable[[int, Failure], None],
        *,
        is_last_try: bool,
    ) -> None:
        def reject(i: int, failure: Failure) -> None:
            sent.rejected.append((positions[i], failure))
            on_rejected(positions[i], failure)

        def attempt(chosen: range) -> Failure | None:
            tried = part if len(chosen) == len(part) else part.take(chosen)
            try:
                result = self._apply(tried)
            except ExportQueueError:
                raise
            except Exception as error:
                if is_transient(error) or raised_by_handler(error) is not None:
                    raise
                return Failure.of(error)
            sent.written += result.written
            sent.stale += result.stale
            if is_last_try:
                for rejection in result.rejected:
                    reject(chosen[rejection.position], Failure(text_of(rejection.reason), "Rejection"))
            elif result.rejected:
                refused = [rejection.position for rejection in result.rejected]
                where = [positions[chosen[i]] for i in refused]
                self._send(tried.take(refused), where, sent, on_rejected, is_last_try=True)
            return None

        for i, failure in isolate(len(part), attempt):
            reject(i, failure)

    def _apply(self, part: Operations) -> ApplyResult:
        try:
            result: ApplyResult = call_again(
                self.retry, lambda: call_sink(self.sink, "apply", part), whom="the sink", check=self.check
            )
        except BaseException as error:
            if not (isinstance(error, SinkConfigurationError) and error.is_unwritten):
                self._sent()
            raise
        self._sent()
        answered = result.written + result.stale + len(result.rejected)
        if answered != len(part):
            raise DrainError(
                f"{type(self.sink).__name__} was given {len(part)} operations and counted {answered}",
                hint="apply() must count each operation once: written, stale or rejected",
            )
        return result

    def _sent(self) -> None:
        if self.on_sent is not None:
            self.on_sent()
