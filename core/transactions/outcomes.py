"""The outcome of a commit: decided by the store, and asked for when its answer was lost."""

from __future__ import annotations

from uuid import UUID

from export_queue.core.errors import CommitOutcomeUnknown, StoreUnavailable
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Outcome, queries

ASK_SECONDS = 20.0
"""How long the outcome of a commit is asked for."""
ASKING = Retry(attempts=None, seconds=ASK_SECONDS, first_pause=0.1)
"""How a store that is cut off is asked again."""


def outcome(database: Database, request: UUID, *, seconds: float = ASK_SECONDS) -> Outcome:
    """Decide the outcome of a request: it waits for a commit in flight and shuts out a later one (I12).

    :param seconds: how long it waits.
    :raises StoreUnavailable: the store cannot be asked, or the commit is still in flight.
    :raises CommitOutcomeUnknown: the request is so old that its outcome may have been forgotten.
    """
    with database.connect(seconds=seconds) as connection:
        decided = database.dialect.steps.decide(connection, request)
    if decided.status == "refused":
        with database.read(seconds=seconds) as work:
            if queries.outcomes.may_be_forgotten(work, request):
                raise CommitOutcomeUnknown(
                    f"the outcome of request {request} is not known any more",
                    hint="clean-up forgets outcomes after a day; `export-queue maintain --keep-outcomes` says when",
                )
    return decided


def ask_outcome(database: Database, request: UUID, *, asking: Retry | None = None) -> Outcome:
    """Decide the outcome of a commit whose answer was lost, and ask again while the store cannot be reached.

    :param asking: how often and how long; :data:`ASKING`.
    :raises StoreUnavailable: the time is over.
    :raises CommitOutcomeUnknown: the outcome may have been forgotten.
    """
    patience = asking or ASKING
    seconds = patience.seconds or ASK_SECONDS
    return patience.call(
        lambda: outcome(database, request, seconds=seconds),
        worth_repeating=lambda error: isinstance(error, StoreUnavailable),
    )
