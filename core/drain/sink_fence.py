"""The fence that a sink keeps of a drain: shown before the first batch, noted, and shown again at the end."""

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
    """What one drain has shown its sink, and the store knows of it."""

    database: Database
    store_id: str
    request: DrainRequest
    fence: int = 0
    """The last one that the sink has kept."""
    shown: int = 0
    """The one that the sink was known to have kept before this drain."""
    binding: Binding = field(default_factory=dict)
    """What this drain writes, as the store keeps it with the reader."""
    is_noted: bool = False
    has_shut_out_former: bool = False
    """Whether the sink takes nothing of drains of former layouts any more; asked of fenced ones."""

    def admit_and_bind(self, engine: Engine, queue: Queue) -> None:
        """Have the sink admit the drain, and bind the queue to it.

        :raises SinkError: the sink refuses.
        :raises ConfigurationError: the queue is bound to another sink, or what waits in it does not suit the guard.
        """
        # A new queue is bound once its sink has answered; the drain of a bound queue touches no other sink.
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
        """Note the fence before the first batch: a drain that is killed amid its batches has left nothing else."""
        if not self.is_noted:
            with self.database.begin() as work:
                queries.readers.hold(work, queue.number)
                queries.queues.note_fence(work, queue.number, self.request.sink_name, self.fence)
                self._is_bound(work, queue)  # another first drain may have stored other options since
            self.is_noted = True

    def shut_out_former(self, engine: Engine, queue: Queue, leases: Sequence[Lease]) -> None:
        """Shut drains of former layouts out of a fenced sink: one may stand still there between its look and a batch.

        Their leases have ended, but the sink knows units by name, and those of this layout have other names.
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
        except LeaseLost:  # a younger drain does so at the same time
            for claim_of_unit in claims:
                with contextlib.suppress(LeaseLost):
                    engine.claim(queue, [claim_of_unit])
        self.has_shut_out_former = True

    def show_again(self, engine: Engine, queue: Queue, *, has_brought: bool) -> None:
        """Show the sink a fence after the last batch: a state without it lacks some of what was acknowledged.

        The drain has kept its promise by now; a sink that does not answer at this moment changes nothing of that.

        :param has_brought: whether the sink has acknowledged any entries.
        :raises SinkLostData: the sink has lost data while it was drained into.
        """
        if not has_brought:
            if self.is_noted and not self.shown:
                # the first drain has left nothing that could be lost: sink, options and exporter may change
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
            log.warning("the sink took no fence after the last batch: %s", error)
            return
        note_fence(self.database, queue, self.request.sink_name, self.fence)

    def _show(self, engine: Engine, queue: Queue) -> None:
        """Show the sink a new fence; one that has not kept the highest that is known has lost data."""
        with self.database.read() as work:
            shown = self.shown = queries.queues.shown_fence(work, queue.id, self.request.sink_name)
        self.fence = admit(
            self.database,
            lambda fence: engine.admit(queue_id=queue.id, store_id=self.store_id, fence=fence, shown=shown),
        )

    def _is_bound(self, work: Reading, queue: Queue) -> bool:
        """Return whether what this drain writes is stored with the reader; as long as nothing was delivered, it may be.

        :raises SinkBindingError: the reader was drained with other options, or with another exporter.
        """
        now = read_again(work, queue)
        if queries.queues.shown_fence(work, queue.id, self.request.sink_name):
            return check_binding(now, self.binding)
        return now.binding == json.dumps(self.binding)

    def _bind(self, queue: Queue) -> None:
        with self.database.begin() as work:
            bind_sink(work, queue, self.request.sink_name)
