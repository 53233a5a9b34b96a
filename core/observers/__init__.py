"""Observers: functions that are called when a cell has changed, each in its own transaction."""

from export_queue.core.observers.failures import ObserverFailure, delay_ms
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
    "waiting_rows",
    "work",
]
