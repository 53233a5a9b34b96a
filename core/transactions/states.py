"""The states of an open transaction, and the only ways between them; no I/O."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a transaction stands, as the process that holds it sees it."""

    NEW = "new"
    """It has no id: it has not read, and its id has not been asked for."""
    IN_PROGRESS = "in progress"
    """It is registered in the store, and no later snapshot sees it."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    """It never takes effect: refused, given up, or failed."""
    UNKNOWN = "unknown"
    """The commit got no answer and the store could not be asked."""


TRANSITIONS: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.IN_PROGRESS, State.COMMITTING, State.ABORTED}),
    State.IN_PROGRESS: frozenset({State.COMMITTING, State.ABORTED}),
    State.COMMITTING: frozenset({State.COMMITTED, State.ABORTED, State.UNKNOWN}),
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
    State.UNKNOWN: frozenset(),
}
"""Every step that a transaction can take; ``docs/transaction-ids.md`` draws them."""

OPEN = frozenset({State.NEW, State.IN_PROGRESS})
"""The states in which it may be worked with."""
