"""Counting the results of the operations of one chunk; pure.

A chunk's operations are collapsed and sent in rounds, nearly always in one. If the sink rejects an operation, its whole
entry is dead, and operations that the rejected one had superseded are sent in another round (I6). Every operation ends
in exactly one of four counts: written, stale, collapsed, rejected (I13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.exporters import Failure
from export_queue.core.sinks import Operations, Round, next_round


@dataclass(slots=True)
class Batch:
    """The operations of one chunk and their results.

    While :meth:`next_round` returns operations, send them and pass their results to :meth:`record`.

    :param operations: all operations that the exporter made from the chunk.
    :param dead: entries on which the exporter failed, by position in the chunk.
    """

    operations: Operations
    dead: dict[int, Failure] = field(default_factory=dict)
    written: int = 0
    stale: int = 0
    collapsed: int = 0
    rejected: int = 0
    _pending: Sequence[int] = ()
    """Positions of operations that have no result and are not in the current round."""
    _round: Round | None = None

    def __post_init__(self) -> None:
        self._pending = range(len(self.operations))

    def next_round(self) -> Operations | None:
        """Return the next operations to send, collapsed; None if every operation has a result.

        :raises AmbiguousRecord: two entries of one transaction put different documents into one record; its
            ``positions`` count among all operations.
        """
        if not self._pending:
            return None
        self._round, self._pending = next_round(self.operations, self._pending), ()
        return self._round.operations

    def record(self, *, written: int, stale: int, rejected: Iterable[tuple[int, Failure]] = ()) -> None:
        """Record the results of a whole round.

        :param written: operations that the sink wrote.
        :param stale: operations for which the sink holds something newer.
        :param rejected: position in the round and reason of each operation that the sink rejects permanently.
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
        # operations of a dead entry are not sent
        self._pending = [position for position in freed if self.operations.entries[position] not in self.dead]
        self.rejected += len(freed) - len(self._pending)
