"""The result of each operation of one chunk: pure bookkeeping between a drain and its sink.

A chunk's operations are collapsed and sent in rounds. In nearly every chunk there is one round. Where
the sink rejects an operation its entry is dead as a whole, and operations of other entries that had
given way to the rejected one must be sent after all: they form the next round (I6). Every operation
ends in exactly one of four counts: written, stale, collapsed, rejected (I13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.exporters import Failure
from export_queue.core.sinks import Operations, Round, next_round


@dataclass(slots=True)
class Batch:
    """The operations of one chunk on their way into the sink.

    Use: while :meth:`next_round` gives operations, send them and hand their results to :meth:`record`.

    :param operations: all operations that the exporter made of the chunk.
    :param dead: entries that are dead already, by position in the chunk: the exporter failed on them.
    """

    operations: Operations
    dead: dict[int, Failure] = field(default_factory=dict)
    written: int = 0
    stale: int = 0
    collapsed: int = 0
    rejected: int = 0
    _pending: Sequence[int] = ()
    """Positions of operations without a result that are not in the round under way."""
    _round: Round | None = None
    """The round under way."""

    def __post_init__(self) -> None:
        self._pending = range(len(self.operations))

    def next_round(self) -> Operations | None:
        """Collapse the operations that are sent next; None where every operation has its result.

        :raises AmbiguousRecord: two entries of one transaction put different documents into one record;
            its ``positions`` are those among all operations.
        """
        if not self._pending:
            return None
        self._round, self._pending = next_round(self.operations, self._pending), ()
        return self._round.operations

    def record(self, *, written: int, stale: int, rejected: Iterable[tuple[int, Failure]] = ()) -> None:
        """Record the results of a whole round.

        :param written: operations that the sink wrote.
        :param stale: operations that met something newer.
        :param rejected: position in the round and reason of each operation that the sink will never take.
        """
        assert self._round is not None
        current, self._round = self._round, None
        self.written += written
        self.stale += stale
        refused = {current.positions[i]: failure for i, failure in rejected}
        self.rejected += len(refused)
        for position, failure in refused.items():
            self.dead.setdefault(self.operations.entries[position], failure)
        freed = current.freed_by(refused)
        self.collapsed += len(current.superseded) - len(freed)
        # no operation of a dead entry is sent any more
        self._pending = [position for position in freed if self.operations.entries[position] not in self.dead]
        self.rejected += len(freed) - len(self._pending)
