"""The seam of locks: what several writers at a time need to keep out of each other's way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from export_queue.core.store.seams.values import Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class LockCall:
    """A request for locks of a queue."""

    queue: int
    layout: int
    buckets_per_range: int
    """Buckets of one unit, as the requester knows the queue."""
    areas: Sequence[tuple[int, int, str | None]]
    """First bucket, end, and what is requested there, as locks store it."""
    mode: str
    priority: int
    task: str
    attempts: Sequence[str]
    """The requester's own, and others of its task that it does not take over."""
    lease_ms: int
    """How long the locks last."""


class LockSteps(Protocol):
    """Locks of a database with several writers at a time."""

    def try_readers(self, connection: Handle, queue: int) -> bool:
        """Take the right to change the readers of a queue until the SQL transaction ends; wait a moment at most.

        Each commit that adds to the queue holds its readers unchanged, from before it reads them to its end.

        :returns: False where such commits were in progress.
        """

    def hold_readers(self, connection: Handle, queue: int) -> None:
        """Keep the readers and the layout of a queue unchanged until the SQL transaction ends, as commits do."""

    def brief_waits(self, connection: Handle, queue: str) -> AbstractContextManager[None]:
        """Limit the wait for each lock to a moment, from the start of a block to the end of the open SQL transaction.

        :param queue: the id of the queue whose readers are changed.
        :raises QueueBusy: in the block, a row was held for longer.
        """

    def lock_at_once(self, connection: Handle, call: LockCall) -> int | None:
        """Grant locks in one call, where nothing that needs a decision is in their way.

        :returns: their fence; None where the request is to be decided step by step.
        """

    def release_locks(self, connection: Handle, places: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        """Remove locks, by fence and first bucket; return whether anybody waits for locks of one of the queues."""
