"""The store's portable statements: one module a subject, whose functions run in an open SQL transaction."""

from export_queue.core.store.queries import (
    attempts,
    cleanup,
    conflict_keys,
    dead_letters,
    entries,
    floors,
    invalid,
    locks,
    monitoring,
    notifications,
    outcomes,
    queues,
    readers,
    reports,
    sinks,
    versions,
)

__all__ = [
    "attempts",
    "cleanup",
    "conflict_keys",
    "dead_letters",
    "entries",
    "floors",
    "invalid",
    "locks",
    "monitoring",
    "notifications",
    "outcomes",
    "queues",
    "readers",
    "reports",
    "sinks",
    "versions",
]
