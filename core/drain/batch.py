"""What becomes of each operation of one chunk: pure bookkeeping between a drain and its sink.

A chunk's operations are collapsed and sent in rounds. In nearly every chunk there is one round. Where
the sink rejects an operation its entry is dead as a whole, and operations of other entries that had
given way to the rejected one must be sent after all: they form the next round (I6). Every operation
ends in exactly one of four counts: written, stale, collapsed, rejected (I13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.exporters import Failure
from export_queue.core.errors import AmbiguousRecord
from export_queue.core.sinks import Operations, collapse


@dataclass(slots=True)
class Batch:
    """The operations of one chunk on their way into the sink.

    Use: while :meth:`next_round` gives operations, send them and hand what became of them to
    :meth:`settle`.

    :param operations: all that the exporter produced for the chunk.
    :param dead: entries that are dead already, by position in the chunk: the exporter failed on them.
    """

    operations: Operations
    dead: dict[int, Failure] = field(default_factory=dict)
    written: int = 0
    stale: int = 0
    collapsed: int = 0
    rejected: int = 0
    _pending: Sequence[int] = ()
    """Positions of operations without a fate that are not in the round that is out."""
    _sent: Sequence[int] = ()
    """Position, among all operations, of each operation of the round that is out."""
    _superseded: Sequence[int] = ()
    """Positions that gave way to one of the round that is out."""

    def __post_init__(self) -> None:
        self._pending = range(len(self.operations))

    def next_round(self) -> Operations | None:
        """Collapse what is to be sent next; None if everything has its fate.

        :raises AmbiguousRecord: two entries of one transaction put different documents into one record;
            its ``positions`` are those among all operations.
        """
        if not self._pending:
            return None
        everything = len(self._pending) == len(self.operations)
        pending = self.operations if everything else self.operations.take(self._pending)
        try:
            kept, dropped = collapse(pending)
        except AmbiguousRecord as error:
            one, other = error.positions
            error.positions = self._pending[one], self._pending[other]
            raise
        gone = set(dropped)
        self._superseded = [self._pending[i] for i in dropped]
        self._sent = [position for i, position in enumerate(self._pending) if i not in gone] if gone else self._pending
        self._pending = ()
        return kept

    def settle(self, *, written: int, stale: int, rejected: Iterable[tuple[int, Failure]] = ()) -> None:
        """Take in what became of a whole round.

        :param written: operations that the sink wrote.
        :param stale: operations that met something newer.
        :param rejected: position in the round and reason of each operation that the sink will never take.
        """
        self.written += written
        self.stale += stale
        refused = [(self._sent[i], failure) for i, failure in rejected]
        if not refused:
            self.collapsed += len(self._superseded)
            self._superseded = ()
            return
        self.rejected += len(refused)
        for position, failure in refused:
            self.dead.setdefault(self.operations.entries[position], failure)
        vacant = {self._record(position) for position, _ in refused}
        pending: list[int] = []
        for position in self._superseded:
            if self._record(position) not in vacant:
                self.collapsed += 1
            elif self.operations.entries[position] in self.dead:
                self.rejected += 1
            else:
                pending.append(position)
        self._superseded, self._pending = (), pending

    def _record(self, position: int) -> tuple[str, bytes]:
        return self.operations.collections[position], self.operations.ids[position]
