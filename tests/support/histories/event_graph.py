"""Transactions as events in an order, and the cycles in it.

A transaction is two events, its *start* (its snapshot is taken) and its *commit*. Dependencies put events in order:

* ``before`` wrote what ``after`` read (wr) or wrote over (ww): commit of ``before`` < start of ``after``;
* ``before`` read what ``after`` wrote over (rw): start of ``before`` < commit of ``after``;
* ``before`` was acknowledged when ``after`` began (real-time and session order): commit < start.

A history is snapshot isolation if and only if these orders, with start < commit of each transaction, have no cycle.
That is the theorem of Cerone and Gotsman, that ``(so ∪ wr ∪ ww) ; rw?`` is acyclic, unfolded to a graph whose size is
linear in the history: a path from commit to commit passes a dependency and then at most one rw. So a cycle with two rw
in a row (write skew) is none here: it is allowed.

Sources: A. Cerone and A. Gotsman, "Analysing Snapshot Isolation", J. ACM 65(2), 2018 (the theorem, with session order;
for strong snapshot isolation real-time order takes its place). A. Adya, "Weak Consistency", PhD thesis, MIT 1999 (G0,
G1a to G1c, G-single; starts and commits as events of one graph).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import NamedTuple

VISITS = 3_000_000
"""Nodes that the search for one smallest cycle looks at before it takes the smallest found so far."""
STARTS = 300
"""Transactions at which that search begins."""


class Edge(IntEnum):
    """Why one event comes before another."""

    INSIDE = 0
    TIME = 1
    SESSION = 2
    WW = 3
    WR = 4
    RW = 5


class Dependency(NamedTuple):
    """One step of a cycle, between transactions."""

    kind: Edge
    before: int
    after: int
    version: int
    """What was read or written, as the caller numbered it; -1 for orders in time."""


_DATA = frozenset({Edge.WW, Edge.WR, Edge.RW})
_STAGES = (frozenset({Edge.WW}), frozenset({Edge.WW, Edge.WR}), _DATA, frozenset(Edge))
"""Kinds of edges of a cycle, the gravest anomaly first."""


class EventGraph:
    """Starts and commits of numbered transactions, and the moments of a common clock between them."""

    def __init__(self, transactions: int) -> None:
        self._nodes = 2 * transactions  # 2 i starts and 2 i + 1 commits transaction i; moments have higher numbers
        starts = range(0, 2 * transactions, 2)
        self._from, self._to = array("q", starts), array("q", (n + 1 for n in starts))
        self._kind, self._version = array("b", bytes(transactions)), array("q", (-1,)) * transactions
        self._began, self._ended = array("q", (-1,)) * transactions, array("q", (-1,)) * transactions
        self._moments = 0

    @property
    def edges(self) -> int:
        """How many orders of two events are known."""
        return len(self._from)

    def add(self, kind: Edge, before: int, after: int, version: int = -1) -> None:
        """Add a dependency between two transactions."""
        rw = kind == Edge.RW
        self._edge(2 * before + (not rw), 2 * after + rw, kind, version)

    def _edge(self, before: int, after: int, kind: Edge, version: int = -1) -> None:
        self._from.append(before)
        self._to.append(after)
        self._kind.append(kind)
        self._version.append(version)

    def add_moment(self, ended: Iterable[int], began: Iterable[int]) -> None:
        """Add the next moment of the clock.

        :param ended: transactions acknowledged between the last moment and this one.
        :param began: those that began between this moment and the next.
        """
        moment = self._nodes
        if self._moments:
            self._edge(moment - 1, moment, Edge.TIME)
        for i in ended:
            self._ended[i] = moment
            self._edge(2 * i + 1, moment, Edge.TIME)
        for i in began:
            self._began[i] = moment
            self._edge(moment, 2 * i, Edge.TIME)
        self._nodes += 1
        self._moments += 1

    def cycles(self, limit: int) -> list[list[Dependency]]:
        """Find cycles, for each group of entangled transactions a small one; linear in the graph if there is none.

        :param limit: most cycles.
        :returns: the cycles, those of the gravest kinds of dependencies first.
        """
        first, order = self._outgoing()
        left = self._unsorted(first, order)
        found: list[list[Dependency]] = []
        explained: set[int] = set()
        for kinds in _STAGES if left else ():
            part = _Part(self, first, order, kinds, left)
            for component in part.components():
                if len(found) >= limit:
                    return found
                if explained.isdisjoint(component):
                    explained.update(component)
                    found.append(self._smallest(_Part(self, first, order, kinds, set(component))))
        return found

    def _outgoing(self) -> tuple[array[int], array[int]]:
        """Sort the edges by the event that they leave: those of event n stand from first[n] to first[n + 1]."""
        counts = array("q", bytes(8 * (self._nodes + 1)))
        for node in self._from:
            counts[node + 1] += 1
        first = array("q", accumulate(counts))
        free, order = array("q", first), array("q", bytes(8 * len(self._from)))
        for edge, node in enumerate(self._from):
            order[free[node]] = edge
            free[node] += 1
        return first, order

    def _unsorted(self, first: array[int], order: array[int]) -> set[int]:
        """Give the events that cannot be put in order: those on cycles and behind them (Kahn's algorithm)."""
        to, missing = self._to, array("q", bytes(8 * self._nodes))
        for node in to:
            missing[node] += 1
        ready = [node for node in range(self._nodes) if not missing[node]]
        sorted_nodes = 0
        while ready:
            node = ready.pop()
            sorted_nodes += 1
            for edge in order[first[node] : first[node + 1]]:
                after = to[edge]
                missing[after] -= 1
                if not missing[after]:
                    ready.append(after)
        return set() if sorted_nodes == self._nodes else {node for node in range(self._nodes) if missing[node]}

    def _smallest(self, part: _Part) -> list[Dependency]:
        """Find a cycle of few events in a strongly connected part."""
        pair = self._against_time(part)
        if pair and Edge.TIME in part.kinds:
            return pair
        commits = [node for node in sorted(part.nodes) if node < 2 * len(self._began) and node % 2]
        best: list[int] = []
        visits = 0
        for start in commits[:: len(commits) // STARTS + 1]:
            circle, seen = part.circle(start, shorter_than=len(best) or len(part.nodes) + 1)
            best = circle or best
            visits += seen
            if visits > VISITS or len(best) == 2:
                break
        steps = self._dependencies(best)
        return pair if pair and len(steps) > 2 else steps

    def _against_time(self, part: _Part) -> list[Dependency] | None:
        """Find a dependency on a transaction that began after the other one had been acknowledged."""
        for node in part.nodes:
            for edge in part.edges(node):
                kind, before, after = Edge(self._kind[edge]), node // 2, self._to[edge] // 2
                if kind > Edge.TIME and -1 < self._ended[after] <= self._began[before]:
                    return [
                        Dependency(kind, before, after, self._version[edge]),
                        Dependency(Edge.TIME, after, before, -1),
                    ]
        return None

    def _dependencies(self, circle: Sequence[int]) -> list[Dependency]:
        """Turn edges between events into steps between transactions; a run of moments is one step."""
        steps: list[Dependency] = []
        left = -1
        for edge in circle:
            kind, before, after = Edge(self._kind[edge]), self._from[edge], self._to[edge]
            if kind == Edge.TIME:
                if before < 2 * len(self._began):
                    left = before // 2
                if after < 2 * len(self._began):
                    steps.append(Dependency(kind, left, after // 2, -1))
            elif kind != Edge.INSIDE:
                steps.append(Dependency(kind, before // 2, after // 2, self._version[edge]))
        return steps


class _Part:
    """Some events of a graph, and the edges of some kinds between them."""

    def __init__(
        self, graph: EventGraph, first: array[int], order: array[int], kinds: Collection[Edge], nodes: set[int]
    ) -> None:
        self._graph, self._first, self._order = graph, first, order
        self.kinds = {Edge.INSIDE, *kinds}
        self.nodes = nodes

    def edges(self, node: int) -> Iterator[int]:
        """Give the edges that leave an event."""
        kind, to = self._graph._kind, self._graph._to
        for edge in self._order[self._first[node] : self._first[node + 1]]:
            if kind[edge] in self.kinds and to[edge] in self.nodes:
                yield edge

    def components(self) -> Iterator[list[int]]:
        """Give the strongly connected components of more than one event: Tarjan's algorithm, without recursion."""
        to, index, low = self._graph._to, dict[int, int](), dict[int, int]()
        stack: list[int] = []
        waiting: set[int] = set()
        for root in sorted(self.nodes):
            work: list[tuple[int, Iterator[int]]] = [] if root in index else [(root, self.edges(root))]
            while work:
                node, edges = work[-1]
                if node not in index:
                    index[node] = low[node] = len(index)
                    stack.append(node)
                    waiting.add(node)
                for edge in edges:
                    after = to[edge]
                    if after not in index:
                        work.append((after, self.edges(after)))
                        break
                    if after in waiting:
                        low[node] = min(low[node], index[after])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        component = [stack.pop()]
                        while component[-1] != node:
                            component.append(stack.pop())
                        waiting.difference_update(component)
                        if len(component) > 1:
                            yield component

    def circle(self, start: int, *, shorter_than: int) -> tuple[list[int], int]:
        """Walk from an event back to it by the fewest edges; returns them, and how many events were seen."""
        to, frm = self._graph._to, self._graph._from
        came: dict[int, int] = {}
        queue = deque([(start, 0)])
        while queue:
            node, length = queue.popleft()
            if length + 1 >= shorter_than:
                break
            for edge in self.edges(node):
                after = to[edge]
                if after in came:
                    continue
                came[after] = edge
                if after == start:
                    path = [edge]
                    while frm[path[-1]] != start:
                        path.append(came[frm[path[-1]]])
                    return path[::-1], len(came)
                queue.append((after, length + 1))
        return [], len(came)
