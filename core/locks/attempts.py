"""Attempts of tasks: a newer attempt takes over from all older ones, and a revoked attempt gets no more locks.

The store records both, so that an attempt which holds nothing at the moment, because it waits or is starting, notices
too (revocation is sticky). An attempt that ends normally is forgotten.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field

from export_queue.core.errors import LeaseLost
from export_queue.core.queue import Queue
from export_queue.core.store import Database, Reading, Work, queries


@dataclass(frozen=True, slots=True)
class Owner:
    """A task, and one attempt of it."""

    task: str
    """The same for all retries, such as dag/run/task/map index: a new attempt takes over what an older one holds."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Different for every attempt; by default a new one."""
    submission: str | None = None
    """The attempt that submitted this one, such as an operator's; revoking it ends this one too."""

    @classmethod
    def unique(cls) -> Owner:
        """Make an owner that no other drain shares."""
        attempt = uuid.uuid4().hex
        return cls(f"{socket.gethostname()}/{os.getpid()}/{attempt}", attempt)

    def submitted(self) -> Owner:
        """Make the owner of a program that this one submits; each run of the program is a separate attempt."""
        return Owner(self.task, uuid.uuid4().hex, self.submission or self.attempt)

    @property
    def names(self) -> set[str]:
        """The attempts whose revocation ends this one."""
        return {self.attempt} if self.submission is None else {self.attempt, self.submission}


def begin_attempt(database: Database, queue: Queue, owner: Owner) -> None:
    """Take over from all older attempts of a task on a queue. Call it once, before an attempt begins its work.

    :param queue: the queue on which the task works.
    :raises LeaseLost: the attempt was already revoked, or a newer one has begun.
    """
    with database.begin() as work:
        queries.locks.serialise_requests(work, queue.number, queue_id=queue.id)
        take_over(work, queue, owner)
        queries.locks.add_attempt(work, queue.number, owner.task, owner.attempt, submission=owner.submission)


def take_over(work: Work, queue: Queue, owner: Owner) -> bool:
    """Revoke the other attempts of a task on a queue, with their locks and requests.

    :returns: whether anybody waits for locks of the queue.
    :raises LeaseLost: this attempt was revoked itself.
    """
    known = queries.locks.known_attempts(work, owner.task, lock=True)
    _refuse_revoked(owner, {row["attempt"] for row in known if row["revoked"]})
    others = {row["attempt"] for row in known if row["queue_number"] == queue.number and not row["revoked"]}
    holding, some_wait = queries.locks.holders_and_waiting(work, owner.task, queue=queue.number)
    if others := (others | holding) - owner.names:
        queries.locks.revoke(work, owner.task, others)
    return some_wait


def check_attempt(database: Database, owner: Owner) -> None:
    """Check that an attempt may still work, even if it holds nothing.

    :raises LeaseLost: it was revoked, or a newer one has begun.
    """
    with database.read() as work:
        known = queries.locks.known_attempts(work, owner.task, lock=False)
    _refuse_revoked(owner, {row["attempt"] for row in known if row["revoked"]})


def serialise(work: Work, owner: Owner) -> None:
    """Let one SQL transaction of a task continue at a time; call it before entering a critical section."""
    queries.locks.known_attempts(work, owner.task, lock=True)


def end_attempt(work: Work, owner: Owner) -> None:
    """Forget an attempt that has ended; a revoked one stays on record."""
    queries.locks.forget_attempts(work, owner.task, owner.names)


def show_life(database: Database, owner: Owner) -> None:
    """Record that a submitted attempt lives, in the record of the attempt that submitted it.

    :raises LeaseLost: it was revoked, or a newer one has begun.
    """
    with database.begin() as work:
        queries.locks.touch_attempt(work, owner.task, owner.submission or owner.attempt)
    check_attempt(database, owner)


def last_sign(work: Reading, owner: Owner) -> int | None:
    """Return when an attempt began, or when one that it submitted showed life last, in milliseconds.

    :returns: None if the attempt is not on record: it did not begin, or it has ended.
    """
    return queries.locks.attempt_at(work, owner.task, owner.attempt)


def revoke(database: Database, task: str, *, attempt: str | None = None) -> int:
    """End attempts of a task: their locks no longer count, and they get no others.

    :param attempt: end this attempt and those that it has submitted, even before they begin; by default end all that
        have begun.
    :returns: number of revoked locks.
    """
    with database.begin() as work:
        known = queries.locks.known_attempts(work, task, lock=True)
        if attempt is None:
            ended = {row["attempt"] for row in known} | queries.locks.holders(work, task)
        else:
            ended = {attempt} | {row["attempt"] for row in known if row["submission"] == attempt}
        return queries.locks.revoke(work, task, ended)


def _refuse_revoked(owner: Owner, revoked: set[str]) -> None:
    if revoked & owner.names:
        raise LeaseLost(
            f"this attempt of {owner.task} was revoked, or taken over by a newer one",
            hint="if its task was stopped or repeated, nothing needs to be done; otherwise start it again",
        )
