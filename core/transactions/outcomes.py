"""The outcome of a commit whose answer was lost; the store decides it."""

from __future__ import annotations

from uuid import UUID

from export_queue.core.errors import CommitOutcomeUnknown, StoreUnavailable
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Outcome, queries

ASK_SECONDS = 20.0
"""How long to ask for the outcome of a commit."""
ASKING = Retry(attempts=None, seconds=ASK_SECONDS, first_pause=0.1)


def outcome(database: Database, request: UUID, *, seconds: float = ASK_SECONDS) -> Outcome:
    """Decide the outcome of a request: wait for a commit in progress, and refuse any later one (I12).

    :param seconds: how long to wait.
    :raises StoreUnavailable: the store cannot be asked, or the commit is still in progress.
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
    """Call :func:`outcome` until the store answers, or until the time of ``asking`` is over."""
    patience = asking or ASKING
    seconds = patience.seconds or ASK_SECONDS
    return patience.call(
        lambda: outcome(database, request, seconds=seconds),
        worth_repeating=lambda error: isinstance(error, StoreUnavailable),
    )
