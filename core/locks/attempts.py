"""Attempts of tasks: a newer one takes over from all older ones, and a revoked one gets nothing any more.

The store remembers both, so that an attempt that holds nothing at this moment, because it waits or is still
starting, learns of it too (revocation is sticky). An attempt that ends in order is forgotten.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field

from export_queue.core.errors import LeaseLost
from export_queue.core.queue import Queue
from export_queue.core.store import Database, Work, queries


@dataclass(frozen=True, slots=True)
class Owner:
    """A task, and one attempt of it."""

    task: str
    """The same over retries, such as dag/run/task/map index: a new attempt takes over what an older one holds."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Different for every attempt; by default a new one."""
    submission: str | None = None
    """The attempt that has submitted this one, such as that of an operator: this one ends where that one is revoked."""

    @classmethod
    def unique(cls) -> Owner:
        """Make an owner that no other drain shares."""
        attempt = uuid.uuid4().hex
        return cls(f"{socket.gethostname()}/{os.getpid()}/{attempt}", attempt)

    def submitted(self) -> Owner:
        """Make the owner of a program that this one submits; each run of the program is an attempt of its own."""
        return Owner(self.task, uuid.uuid4().hex, self.submission or self.attempt)

    @property
    def names(self) -> set[str]:
        """The attempts whose revocation ends this one."""
        return {self.attempt} if self.submission is None else {self.attempt, self.submission}


def begin_attempt(database: Database, queue: Queue, owner: Owner) -> None:
    """Take over from all older attempts of a task on a queue; do it once, before an attempt begins its work.

    :param queue: the queue on which the task works.
    :raises LeaseLost: the attempt was revoked already, or a newer one has begun.
    """
    with database.begin() as work:
        queries.locks.serialise_requests(work, queue.number, queue_id=queue.id)
        take_over(work, queue, owner)
        queries.locks.add_attempt(work, queue.number, owner.task, owner.attempt, submission=owner.submission)


def take_over(work: Work, queue: Queue, owner: Owner) -> bool:
    """Revoke the other attempts of a task on a queue, their locks and their requests for some.

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
    """Look whether an attempt may still work, also where it holds nothing.

    :raises LeaseLost: it was revoked, or a newer one has begun.
    """
    with database.read() as work:
        known = queries.locks.known_attempts(work, owner.task, lock=False)
    _refuse_revoked(owner, {row["attempt"] for row in known if row["revoked"]})


def serialise(work: Work, owner: Owner) -> None:
    """Let one SQL transaction of a task go on at a time, from here to its end; enter no critical section before."""
    queries.locks.known_attempts(work, owner.task, lock=True)


def end_attempt(work: Work, owner: Owner) -> None:
    """Forget an attempt that has ended; a revoked one stays known."""
    queries.locks.forget_attempts(work, owner.task, owner.names)


def revoke(database: Database, task: str, *, attempt: str | None = None) -> int:
    """End attempts of a task: their locks are worthless, and they get no others.

    :param attempt: this attempt and those that it has submitted, also such as have not begun; by default all that
        have begun.
    :returns: how many locks were revoked.
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
            hint="nothing is to be done where its task was stopped or repeated; else start it again",
        )
