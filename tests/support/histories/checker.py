"""A checker of transaction histories: is what clients saw strong snapshot isolation?

Clients append unique values to lists and read whole lists, so that a read tells which writes came before it and in
which order. They may also overwrite single values (registers), whose order is that of their writers' ids::

    verdict = check_history([
        HistoryTransaction(session="a", begin=10, end=19, operations=(ReadList("x", ()), Append("x", 1))),
        HistoryTransaction(session="b", begin=20, end=29, operations=(ReadList("x", (1,)), Write("y", 2)), id=8),
    ])
    assert not verdict.anomalies, str(verdict)

Found are: aborted and intermediate reads, write cycles, circular information flow, lost updates, read skew, long forks,
stale reads and ids out of order. Write skew is allowed. A transaction that was aborted is judged by its reads as well:
it had a snapshot, too. The check takes time linear in the history.

Sources: K. Kingsbury and P. Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020
(what follows from lists); for the rest see :mod:`tests.support.histories.event_graph`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.support.histories.anomalies import Anomaly
from tests.support.histories.columns import Columns
from tests.support.histories.history import HistoryTransaction
from tests.support.histories.inference import Inference


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check."""

    anomalies: tuple[Anomaly, ...]
    """At most ``limit`` of each way of looking."""
    transactions: int
    committed: int
    reads: int
    dependencies: int
    """Orders of two events that were derived from reads, writes and clocks."""

    def __str__(self) -> str:
        counts = (
            f"{self.transactions} transactions, {self.committed} committed, {self.reads} reads, "
            f"{self.dependencies} dependencies: {len(self.anomalies) or 'no'} anomalies"
        )
        return "\n\n".join((counts, *map(str, self.anomalies)))


def check_history(transactions: Iterable[HistoryTransaction], *, limit: int = 20) -> Verdict:
    """Check that a history is strong snapshot isolation.

    :param transactions: in any order, but those of a session in theirs; each is looked at once, none is kept.
    :param limit: most anomalies of one kind, and most cycles, that are explained.
    :returns: the anomalies, and how much was checked.
    :raises ValueError: this is no history: a value written twice, a key used as list and as register, sessions whose
        transactions overlap.
    """
    columns = Columns(limit)
    for transaction in transactions:
        columns.add(transaction)
    inference = Inference(columns)
    anomalies = inference.anomalies()
    return Verdict(anomalies, len(columns.session), inference.committed, len(columns.read), inference.dependencies)
