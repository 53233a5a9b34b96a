"""The fence of a drain: sent to the sink before the first batch, noted in the store, and renewed at the end."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.admission import admit, note_fence, warn_of_namesake
from export_queue.core.drain.binding import Binding, check_binding
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.fenced import refuse_dead_letters, refuse_older_layouts
from export_queue.core.drain.request import DrainRequest
from export_queue.core.errors import ExportQueueError, LeaseLost, SinkLostData
from export_queue.core.locks import Lease
from export_queue.core.queue import Queue, bind_sink, former_layouts, read_again
from export_queue.core.store import Database, Reading, queries

log = logging.getLogger("export_queue.drain")


@dataclass(slots=True)
class SinkFence:
    """The fences that one drain sends to its sink, and what the store knows of them."""

    database: Database
    store_id: str
    request: DrainRequest
    fence: int = 0
    """The last fence that the sink accepted."""
    shown: int = 0
    """The last fence that the sink is known to have accepted before this drain."""
    binding: Binding = field(default_factory=dict)
    """The binding of this drain, as the store keeps it with the reader."""
    is_noted: bool = False
    has_shut_out_former: bool = False
    """Whether a fenced sink refuses drains of former layouts."""

    def admit_and_bind(self, engine: Engine, queue: Queue) -> None:
        """Let the sink admit the drain, and bind the queue to it.

        :raises SinkError: the sink refuses.
        :raises ConfigurationError: the queue is bound to another sink, or its entries do not suit the guard.
        """
        # a new queue is bound once its sink has answered; the drain of a bound queue contacts no other sink
        if queue.sink is not None:
            self._bind(queue)
        self.binding = engine.binding()
        with self.database.read() as work:
            is_bound = self._is_bound(work, queue)
        self._show(engine, queue)
        if queue.sink is None:
            self._bind(queue)
        if not is_bound:
            with self.database.begin() as work:
                queries.readers.hold(work, queue.number)
                if not self._is_bound(work, queue):
                    queries.queues.alter_queue(work, queue.number, binding=json.dumps(self.binding))
        warn_of_namesake(self.database, queue, self.request.sink_name)
        if engine.is_fenced:
            refuse_older_layouts(self.database, queue)
            refuse_dead_letters(self.database, queue)

    def note(self, queue: Queue) -> None:
        """Note the fence before the first batch: a drain that is killed between batches leaves no other trace."""
        if not self.is_noted:
            with self.database.begin() as work:
                queries.readers.hold(work, queue.number)
                queries.queues.note_fence(work, queue.number, self.request.sink_name, self.fence)
                self._is_bound(work, queue)  # another first drain may have stored other options
            self.is_noted = True

    def shut_out_former(self, engine: Engine, queue: Queue, leases: Sequence[Lease]) -> None:
        """Let a fenced sink refuse drains of former layouts: one may be paused between its check and a batch.

        Their leases have ended, but the sink knows units by name, and the units of this layout have other names.
        """
        if self.has_shut_out_former:
            return
        with self.database.read() as work:
            former = former_layouts(work, queue)
        fence = max(lease.fence for lease in leases)
        claims = [Lease(fence, queue.number, layout.number, unit) for layout in former for unit in layout.units()]
        try:
            if claims:
                engine.claim(queue, claims)
        except LeaseLost:  # a newer drain does the same at this moment
            for claim_of_unit in claims:
                with contextlib.suppress(LeaseLost):
                    engine.claim(queue, [claim_of_unit])
        self.has_shut_out_former = True

    def renew(self, engine: Engine, queue: Queue, *, has_delivered: bool) -> None:
        """Send the sink a new fence after the last batch: a state of the sink without it lacks acknowledged entries.

        The drain is complete at this point, even if the sink does not answer.

        :param has_delivered: whether the sink acknowledged any entries.
        :raises SinkLostData: the sink lost data during the drain.
        """
        if not has_delivered:
            if self.is_noted and not self.shown:
                # the first drain delivered nothing: sink, options and exporter may still change
                with self.database.begin() as work:
                    queries.readers.hold(work, queue.number)
                    queries.queues.forget_fence(work, queue.id, self.request.sink_name, self.fence)
                    if not queries.queues.shown_fence(work, queue.id, self.request.sink_name):
                        queries.queues.alter_queue(work, queue.number, binding=None)
            return
        try:
            self._show(engine, queue)
        except SinkLostData:
            raise
        except ExportQueueError as error:
            log.warning("the sink accepted no fence after the last batch: %s", error)
            return
        note_fence(self.database, queue, self.request.sink_name, self.fence)

    def _show(self, engine: Engine, queue: Queue) -> None:
        """Send the sink a new fence; a sink without the highest known fence has lost data."""
        with self.database.read() as work:
            shown = self.shown = queries.queues.shown_fence(work, queue.id, self.request.sink_name)
        self.fence = admit(
            self.database,
            lambda fence: engine.admit(queue_id=queue.id, store_id=self.store_id, fence=fence, shown=shown),
        )

    def _is_bound(self, work: Reading, queue: Queue) -> bool:
        """Return whether the reader is bound to what this drain writes; False if nothing was delivered yet.

        :raises SinkBindingError: the reader was drained with other options or another exporter.
        """
        now = read_again(work, queue)
        if queries.queues.shown_fence(work, queue.id, self.request.sink_name):
            return check_binding(now, self.binding)
        return now.binding == json.dumps(self.binding)

    def _bind(self, queue: Queue) -> None:
        with self.database.begin() as work:
            bind_sink(work, queue, self.request.sink_name)
