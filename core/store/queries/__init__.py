"""The store's portable statements: one module per subject, whose functions run in an open SQL transaction.

:data:`OFFERED` says which room uses which subjects.
"""

from collections.abc import Mapping

from export_queue.core.store.queries import (
    acts,
    attempts,
    cleanup,
    compactions,
    conflict_keys,
    dead_letters,
    entries,
    floors,
    invalid,
    layouts,
    loads,
    locks,
    monitoring,
    notifications,
    outcomes,
    queues,
    readers,
    reports,
    segments,
    sinks,
    staged_twice,
    tallies,
    vacuum,
    versions,
)

OFFERED: Mapping[str, frozenset[str]] = {
    "client": frozenset({"acts", "invalid", "reports", "segments", "sinks"}),
    "drain": frozenset(
        {"acts", "conflict_keys", "layouts", "monitoring", "queues", "readers", "reports", "sinks", "tallies"}
    ),
    "locks": frozenset({"attempts", "locks", "segments"}),
    "maintenance": frozenset(
        {"acts", "attempts", "cleanup", "floors", "monitoring", "outcomes", "readers", "reports", "versions"}
    ),
    "observers": frozenset({"notifications"}),
    "queue": frozenset(
        {
            "acts",
            "compactions",
            "dead_letters",
            "entries",
            "layouts",
            "locks",
            "queues",
            "readers",
            "reports",
            "segments",
        }
    ),
    "segments": frozenset(
        {"acts", "compactions", "entries", "layouts", "readers", "segments", "staged_twice", "vacuum"}
    ),
    "tables": frozenset({"notifications", "queues"}),
    "transactions": frozenset({"cleanup", "floors", "invalid", "loads", "monitoring", "outcomes", "reports"}),
}
"""The subjects that each room of the core uses. A room that needs another one is named here first."""

__all__ = [
    "OFFERED",
    "acts",
    "attempts",
    "cleanup",
    "compactions",
    "conflict_keys",
    "dead_letters",
    "entries",
    "floors",
    "invalid",
    "layouts",
    "loads",
    "locks",
    "monitoring",
    "notifications",
    "outcomes",
    "queues",
    "readers",
    "reports",
    "segments",
    "sinks",
    "staged_twice",
    "tallies",
    "vacuum",
    "versions",
]
