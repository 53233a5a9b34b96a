"""What follows from a history: dependencies, and the anomalies that they show."""

from __future__ import annotations

from array import array
from itertools import chain, pairwise

from tests.support.histories.anomalies import Anomaly, AnomalyKind, classify
from tests.support.histories.columns import NOBODY, UNTOLD, Columns
from tests.support.histories.event_graph import Dependency, Edge, EventGraph


class Inference:
    """What follows from a history."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._graph = EventGraph(len(columns.session))
        self._next = array("q", (UNTOLD,)) * len(columns.value)  # the version after each
        self._also_next: dict[int, list[int]] = {}  # further ones, whose order is not known or not one
        self._committed = bytearray(status == "ok" for status in columns.status)
        for writer, reader in zip(columns.writer, columns.reader, strict=True):
            if reader not in (NOBODY, writer) and writer != NOBODY:
                self._committed[writer] = True

    @property
    def committed(self) -> int:
        """How many transactions have committed, those included whose writes somebody saw."""
        return sum(self._committed)

    @property
    def dependencies(self) -> int:
        """How many orders of two events are known."""
        return self._graph.edges - len(self._committed)

    def anomalies(self) -> tuple[Anomaly, ...]:
        """Infer all dependencies, look for cycles, and give what was found; to be called once."""
        self._look_at_values()
        self._look_at_ids()
        self._order_lists()
        self._order_registers()
        self._add_data_dependencies()
        self._add_orders_in_time()
        for cycle in self._graph.cycles(self._columns.limit):
            self._report_cycle(cycle)
        return tuple(self._columns.anomalies)

    def _look_at_values(self) -> None:
        c = self._columns
        for n, reader in enumerate(c.reader):
            if reader == NOBODY:
                continue
            writer, what = c.writer[n], c.show(n)
            if writer == NOBODY:
                c.report(AnomalyKind.UNWRITTEN_READ, [reader], f"T{reader} read {what}, which nobody wrote")
            elif c.status[writer] == "aborted":
                line = f"T{reader} read {what}, which T{writer} wrote, and T{writer} was aborted"
                c.report(AnomalyKind.ABORTED_READ, [reader, writer], line)
        for reader, n in zip(c.read_by, c.read, strict=True):
            writer = c.writer[n]
            if writer == reader:
                c.report(AnomalyKind.OWN_READ, [reader], f"T{reader} read {c.show(n)} before it wrote that itself")
            elif not c.is_last[n]:
                line = f"T{reader} read {c.show(n)}, which T{writer} wrote, but not what T{writer} wrote there last"
                c.report(AnomalyKind.INTERMEDIATE_READ, [reader, writer], line)

    def _look_at_ids(self) -> None:
        c = self._columns
        numbered = sorted((number, i) for i, number in enumerate(c.id) if number >= 0)
        for (number, i), (other, j) in pairwise(numbered):
            if number == other:
                c.report(AnomalyKind.IDS, [i, j], f"T{i} and T{j} have the same id")

    def _order_lists(self) -> None:
        c = self._columns
        unordered: dict[int, list[int]] = {}
        for n, writer in enumerate(c.writer):
            if writer == NOBODY or not self._committed[writer] or not c.keys[c.key[n]].is_list:
                continue
            before = c.before[n] if c.reader[n] != NOBODY else c.base[n]
            if before == UNTOLD:
                unordered.setdefault(c.key[n], []).append(n)
            elif self._next[before] == UNTOLD:
                self._next[before] = n
            else:
                other = self._next[before]
                self._also_next.setdefault(before, []).append(n)
                lines = [f"T{c.writer[m]} appended {c.show(m)} to {c.show(before)}" for m in (other, n)]
                c.report(AnomalyKind.LOST_UPDATE, [c.writer[other], writer], *lines)
        for key, versions in unordered.items():
            # Appended blindly and never seen: behind everything that was seen, or a list would show them.
            last = c.keys[key].root
            while self._next[last] != UNTOLD:
                last = self._next[last]
            self._also_next.setdefault(last, []).extend(versions)

    def _order_registers(self) -> None:
        c = self._columns
        for key in c.keys:
            if not key.is_list:
                written = [n for n in key.versions.values() if c.writer[n] != NOBODY and self._committed[c.writer[n]]]
                ordered = sorted((c.id[c.writer[n]], n) for n in written if c.is_last[n] and c.id[c.writer[n]] >= 0)
                for before, n in pairwise([key.root, *(n for _, n in ordered)]):
                    self._next[before] = n

    def _add_data_dependencies(self) -> None:
        c, graph = self._columns, self._graph
        for before, n in chain(enumerate(self._next), ((b, n) for b, after in self._also_next.items() for n in after)):
            if n != UNTOLD and c.writer[before] not in (NOBODY, c.writer[n]):
                self._depend(Edge.WW, c.writer[before], c.writer[n], n)
        for reader, n in zip(c.read_by, c.read, strict=True):
            if c.writer[n] not in (NOBODY, reader):
                self._depend(Edge.WR, c.writer[n], reader, n)
            after = self._next[n]
            if after != UNTOLD and c.writer[after] != reader:
                graph.add(Edge.RW, reader, c.writer[after], after)
            for after in self._also_next.get(n, ()):
                if c.writer[after] != reader:
                    graph.add(Edge.RW, reader, c.writer[after], after)

    def _depend(self, kind: Edge, before: int, after: int, version: int) -> None:
        self._graph.add(kind, before, after, version)
        c = self._columns
        if -1 < c.id[after] <= c.id[before]:
            c.report(AnomalyKind.IDS, [before, after], self._say(Dependency(kind, before, after, version)))

    def _add_orders_in_time(self) -> None:
        c, graph = self._columns, self._graph
        for i, previous in enumerate(c.previous):
            if previous != NOBODY:
                graph.add(Edge.SESSION, previous, i)
        begins = sorted((begin, i) for i, begin in enumerate(c.begin) if begin >= 0)
        ends = sorted((end, i) for i, end in enumerate(c.end) if end >= 0 and c.status[i] != "unknown")
        newest = NOBODY  # of those acknowledged so far, the one of the highest id
        ended: list[int] = []
        began: list[int] = []
        position = 0
        for begin, i in begins:
            acknowledged = position
            while position < len(ends) and ends[position][0] < begin:
                j = ends[position][1]
                newest = j if newest == NOBODY or c.id[j] > c.id[newest] else newest
                position += 1
            if position > acknowledged:
                graph.add_moment(ended, began)
                ended, began = [j for _, j in ends[acknowledged:position]], []
            began.append(i)
            if newest != NOBODY and -1 < c.id[i] <= c.id[newest]:
                c.report(AnomalyKind.IDS, [newest, i], self._say(Dependency(Edge.TIME, newest, i, -1)))
        graph.add_moment(ended, began)

    def _report_cycle(self, cycle: list[Dependency]) -> None:
        kind = classify(cycle)
        written = [self._columns.key[step.version] for step in cycle if step.kind in (Edge.WW, Edge.RW)]
        if kind is AnomalyKind.READ_SKEW and len(cycle) == len(written) == 2 and len(set(written)) == 1:
            kind = AnomalyKind.LOST_UPDATE
        self._columns.report(kind, [step.before for step in cycle], *map(self._say, cycle))

    def _say(self, step: Dependency) -> str:
        before, after = f"T{step.before}", f"T{step.after}"
        key, value = self._columns.name_and_value(step.version)
        match step.kind:
            case Edge.WW:
                text = f"{after} wrote {value} to {key} after what {before} had written [ww]"
            case Edge.WR:
                text = f"{after} read {key} with {value}, which {before} wrote [wr]"
            case Edge.RW:
                text = f"{before} read {key} without {value}, which {after} wrote [rw]"
            case Edge.SESSION:
                text = f"{after} came after {before} in one session [session]"
            case _:
                text = f"{after} began when {before} had been acknowledged [time]"
        return f"{before} → {after}: {text}"
