"""Histories of transactions, and a checker that finds anomalies in them.

A history (``history``) is taken in column by column (``columns``). What its reads tell becomes dependencies between
transactions (``inference``), whose cycles are found (``event_graph``) and named (``anomalies``);
``checker`` is the whole.
"""

from tests.support.histories.anomalies import Anomaly, AnomalyKind
from tests.support.histories.checker import Verdict, check_history
from tests.support.histories.history import Append, HistoryTransaction, Operation, Read, ReadList, Write

__all__ = [
    "Anomaly",
    "AnomalyKind",
    "Append",
    "HistoryTransaction",
    "Operation",
    "Read",
    "ReadList",
    "Verdict",
    "Write",
    "check_history",
]
