"""Observers: functions that are called when a cell has changed, each in a transaction of its own."""

from export_queue.core.observers.backoff import delay_ms
from export_queue.core.observers.failures import ObserverFailure, observer_failures
from export_queue.core.observers.registry import Observer, Observers
from export_queue.core.observers.rounds import Processed
from export_queue.core.observers.watching import ColumnSighting, WaitingRows, look, waiting_rows
from export_queue.core.observers.worker import work

__all__ = [
    "ColumnSighting",
    "Observer",
    "ObserverFailure",
    "Observers",
    "Processed",
    "WaitingRows",
    "delay_ms",
    "look",
    "observer_failures",
    "waiting_rows",
    "work",
]
