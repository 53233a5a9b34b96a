"""The store: one schema of a SQL database, and all SQL that is spoken to it."""

from export_queue.core.store.database import Database, Work
from export_queue.core.store.limits import Limits
from export_queue.core.store.protocol import (
    CommitCall,
    Committed,
    Handle,
    Outcome,
    Span,
    Started,
    StoreDialect,
    View,
    Writes,
)

__all__ = [
    "CommitCall",
    "Committed",
    "Database",
    "Handle",
    "Limits",
    "Outcome",
    "Span",
    "Started",
    "StoreDialect",
    "View",
    "Work",
    "Writes",
]
