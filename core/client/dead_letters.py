"""Dead letters, as the users of a store hold them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from export_queue.core.drain import retry_dead_letters
from export_queue.core.queue import (
    ALL_DEAD_LETTERS,
    AuditRecord,
    DeadLetter,
    DeadLetterFilter,
    Queue,
    count_dead_letters,
    dead_letter_audit,
    drop_dead_letters,
    list_dead_letters,
    user_at_host,
)
from export_queue.core.segments import FellBack, fall_back, give_up_file
from export_queue.core.store import Database

log = logging.getLogger("export_queue.dead_letters")

PAGE = 1000
"""Most letters that one call retries or drops, unless it says otherwise."""

# Inside of the class below, `list` is its method.
Letters = list[DeadLetter]
Audit = list[AuditRecord]


class DeadLetters:
    """The entries of a store that drains set aside; :attr:`Store.dead_letters` is one.

    ::

        store.dead_letters.list("orders", DeadLetterFilter(error_class="ValueError"))

    :param database: the store.
    :param find_reader: reads the options of a queue, or of a subscription, in which entries wait.
    :param find_queue: reads the options of any queue or subscription.
    """

    def __init__(
        self, database: Database, find_reader: Callable[[str], Queue], find_queue: Callable[[str], Queue]
    ) -> None:
        self._database = database
        self._find_reader = find_reader
        self._find_queue = find_queue

    def list(
        self,
        queue_id: str,
        which: DeadLetterFilter = ALL_DEAD_LETTERS,
        *,
        after: tuple[int, bytes] | None = None,
        limit: int = 100,
        values: bool = False,
    ) -> Letters:
        """Read a page of a queue's dead letters, oldest entries first; nothing changes.

        :param which: letters to read.
        :param after: ``place`` of the last letter of the page before.
        :param limit: most letters of the page.
        :param values: whether the entries' values are read too.
        """
        queue = self._find_reader(queue_id)
        with self._database.read() as work:
            return list_dead_letters(work, queue, which, after=after, limit=limit, values=values)

    def count(self, queue_id: str, which: DeadLetterFilter = ALL_DEAD_LETTERS) -> int:
        """Count a queue's dead letters."""
        queue = self._find_reader(queue_id)
        with self._database.read() as work:
            return count_dead_letters(work, queue, which)

    def retry(
        self,
        queue_id: str,
        which: DeadLetterFilter = ALL_DEAD_LETTERS,
        *,
        limit: int = PAGE,
        lock_timeout: float = 600.0,
        who: str | None = None,
    ) -> int:
        """Put dead letters back into the queue, oldest first; the next drain sends them again.

        Each letter keeps its sequence, so that a newer entry in the sink stays.

        :param which: letters to retry.
        :param limit: most letters.
        :param lock_timeout: seconds to wait for drains that are at work on the letters' units.
        :param who: name for the audit, which the store keeps; by default user and host of this process.
        :returns: how many went back.
        :raises LockNotAvailable: drains were at work all the time.
        """
        queue, who = self._find_reader(queue_id), who or user_at_host()
        moved = retry_dead_letters(self._database, queue, which, who=who, limit=limit, lock_timeout=lock_timeout)
        log.info("%s put %d dead letters of %s back into the queue: %s", who, moved, queue_id, which.shown() or "any")
        return moved

    def drop(
        self,
        queue_id: str,
        which: DeadLetterFilter = ALL_DEAD_LETTERS,
        *,
        limit: int = PAGE,
        who: str | None = None,
    ) -> int:
        """Delete dead letters for good, oldest first; their entries reach no sink.

        The name and the number stay in the store (:meth:`audit`) and in the log.

        :param which: letters to delete.
        :param limit: most letters.
        :param who: name for the audit; by default user and host of this process.
        :returns: how many are gone.
        """
        queue, who = self._find_reader(queue_id), who or user_at_host()
        with self._database.begin() as work:
            dropped = drop_dead_letters(work, queue, which, who=who, limit=limit)
        log.warning("%s dropped %d dead letters of %s: %s", who, dropped, queue_id, which.shown() or "any")
        return dropped

    def give_up_file(self, queue_id: str, file: str, *, who: str | None = None) -> int:
        """Give up for good what waits in a file of bulk entries that is lost, so that drains pass over it.

        The name and the number stay in the store (:meth:`audit`) and in the log.

        :param queue_id: the queue, or the subscription.
        :param file: the file's name, as ``SegmentLost`` shows it.
        :param who: name for the audit; by default user and host of this process.
        :returns: how many entries reach no sink.
        :raises InvalidArgument: nothing of the file waits in the queue.
        """
        queue, who = self._find_queue(queue_id), who or user_at_host()
        with self._database.begin() as work:
            given_up = give_up_file(work, queue, file, who=who)
        log.warning("%s gave up %d entries of %s in the file %s", who, given_up, queue_id, file)
        return given_up

    def fall_back(self, queue_id: str, file: str, *, who: str | None = None) -> FellBack:
        """Let the segments count again that a lost file of merged ones was made of; they are kept until the vacuum.

        Rows that were merged are in no other file: they are given up, which stays in the store (:meth:`audit`).

        :param queue_id: the queue, or the subscription.
        :param file: the file's name, as ``SegmentLost`` shows it.
        :param who: name for the audit; by default user and host of this process.
        :raises InvalidArgument: nothing that waits in the file was merged, or its inputs have been vacuumed.
        :raises LockNotAvailable: others work in its units.
        """
        found = fall_back(self._database, self._find_queue(queue_id), file, who=who or user_at_host())
        log.warning("%s", found.line())
        return found

    def audit(self, queue_id: str, *, limit: int = 100) -> Audit:
        """Read what people did to a queue's entries, newest first: retries, losses that were accepted, and promises.

        The acts on a subscription that was removed are among those of its queue.
        """
        queue = self._find_queue(queue_id)
        with self._database.read() as work:
            return dead_letter_audit(work, queue, limit=limit)
