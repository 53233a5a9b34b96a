"""The seams between the store and a kind of database: what each kind does in its own way.

Everything else that the store says in SQL is portable and stands in :mod:`export_queue.core.store.queries`. All methods
raise the errors of :mod:`export_queue.core.errors`.
"""

from export_queue.core.store.seams.administration import Administration, Server
from export_queue.core.store.seams.dialect import Dialect
from export_queue.core.store.seams.driver import Driver
from export_queue.core.store.seams.locks import LockCall, LockSteps
from export_queue.core.store.seams.transactions import TransactionSteps
from export_queue.core.store.seams.user_connections import UserConnections
from export_queue.core.store.seams.values import (
    NO_VERSION,
    Begun,
    Cell,
    Clock,
    CommitCall,
    Committed,
    EntryKey,
    Handle,
    Outcome,
    Span,
    Started,
    Swept,
    Version,
    VersionKey,
    Writes,
)
from export_queue.core.store.seams.wake_ups import Channel, Listener, WakeUps

__all__ = [
    "NO_VERSION",
    "Administration",
    "Begun",
    "Cell",
    "Channel",
    "Clock",
    "CommitCall",
    "Committed",
    "Dialect",
    "Driver",
    "EntryKey",
    "Handle",
    "Listener",
    "LockCall",
    "LockSteps",
    "Outcome",
    "Server",
    "Span",
    "Started",
    "Swept",
    "TransactionSteps",
    "UserConnections",
    "Version",
    "VersionKey",
    "WakeUps",
    "Writes",
]
