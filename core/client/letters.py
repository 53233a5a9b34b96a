"""What a store's users do with dead letters."""

from __future__ import annotations

import getpass
import logging
import socket
from typing import Any

from export_queue.core.drain import retry_dead_letters
from export_queue.core.queue import (
    AuditRecord,
    DeadLetter,
    DeadLetterFilter,
    Queue,
    count_dead,
    dead_letter_audit,
    dead_letters,
    drop_dead_letters,
)
from export_queue.core.store import Database

log = logging.getLogger("export_queue.dead_letters")

PAGE = 1000
"""Letters that one call retries or drops at most, unless it says otherwise."""


class Letters:
    """The part of :class:`Store` that is about entries which were set aside.

    Which letters a call means is said by the entry's ``key`` and ``seq``, the ``error_class`` that it was
    rejected with, and the idempotency key of the ``drain`` that set it aside; a letter must have all that is given.
    """

    database: Database

    def queue(self, queue_id: str) -> Queue:
        """Read a queue's options."""
        raise NotImplementedError

    def dead_letters(
        self,
        queue_id: str,
        *,
        key: Any = None,
        seq: int | None = None,
        error_class: str | None = None,
        drain: str | None = None,
        after: tuple[int, bytes] | None = None,
        limit: int = 100,
        values: bool = False,
    ) -> list[DeadLetter]:
        """Read a page of a queue's dead letters, oldest entries first; nothing changes.

        :param after: ``place`` of the last letter of the page before.
        :param limit: most letters of the page.
        :param values: whether the entries' values are read too.
        """
        queue = self.queue(queue_id)
        which = _which(queue, key=key, seq=seq, error_class=error_class, drain=drain)
        with self.database.read() as work:
            return dead_letters(work, queue, which, after=after, limit=limit, values=values)

    def count_dead(
        self,
        queue_id: str,
        *,
        key: Any = None,
        seq: int | None = None,
        error_class: str | None = None,
        drain: str | None = None,
    ) -> int:
        """Count a queue's dead letters."""
        queue = self.queue(queue_id)
        which = _which(queue, key=key, seq=seq, error_class=error_class, drain=drain)
        with self.database.read() as work:
            return count_dead(work, queue, which)

    def retry_dead_letters(
        self,
        queue_id: str,
        *,
        key: Any = None,
        seq: int | None = None,
        error_class: str | None = None,
        drain: str | None = None,
        limit: int = PAGE,
        lock_timeout: float = 600.0,
        who: str | None = None,
    ) -> int:
        """Put dead letters back into the queue, oldest first; the next drain sends them again.

        Each keeps its own sequence: what is newer in the sink stays.

        :param limit: most letters.
        :param lock_timeout: seconds to wait for drains that are at work on their part of the queue.
        :param who: who wants it; by default user and host of this process. The store keeps that.
        :returns: how many went back.
        :raises LockNotAvailable: drains were at work all the time.
        """
        queue, who = self.queue(queue_id), who or _somebody()
        which = _which(queue, key=key, seq=seq, error_class=error_class, drain=drain)
        moved = retry_dead_letters(self.database, queue, which, who=who, limit=limit, lock_timeout=lock_timeout)
        log.info("%s put %d dead letters of %s back into the queue: %s", who, moved, queue_id, which.shown() or "any")
        return moved

    def drop_dead_letters(
        self,
        queue_id: str,
        *,
        key: Any = None,
        seq: int | None = None,
        error_class: str | None = None,
        drain: str | None = None,
        limit: int = PAGE,
        who: str | None = None,
    ) -> int:
        """Delete dead letters for good, oldest first: what they held reaches no sink.

        Who did it, and to how many, stays in the store (:meth:`dead_letter_audit`) and in the log.

        :param limit: most letters.
        :param who: who wants it; by default user and host of this process.
        :returns: how many are gone.
        """
        queue, who = self.queue(queue_id), who or _somebody()
        which = _which(queue, key=key, seq=seq, error_class=error_class, drain=drain)
        with self.database.begin() as work:
            dropped = drop_dead_letters(work, queue, which, who=who, limit=limit)
        log.warning("%s dropped %d dead letters of %s: %s", who, dropped, queue_id, which.shown() or "any")
        return dropped

    def dead_letter_audit(self, queue_id: str, *, limit: int = 100) -> list[AuditRecord]:
        """Read who retried and dropped a queue's dead letters, newest first."""
        queue = self.queue(queue_id)
        with self.database.read() as work:
            return dead_letter_audit(work, queue, limit=limit)


def _which(queue: Queue, *, key: Any, seq: int | None, error_class: str | None, drain: str | None) -> DeadLetterFilter:
    encoded = None if key is None else queue.encode_key(key)
    return DeadLetterFilter(key=encoded, seq=seq, error_class=error_class, drain=drain)


def _somebody() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
