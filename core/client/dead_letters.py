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
    count_acts,
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
"""Default maximum number of letters that one call retries or drops."""

# Inside the class below, `list` is its method.
Letters = list[DeadLetter]
Audit = list[AuditRecord]


class DeadLetters:
    """The entries of a store that drains set aside; :attr:`Store.dead_letters` is one.

    ::

        store.dead_letters.list("orders", DeadLetterFilter(error_class="ValueError"))

    In all methods, ``queue_id`` is a queue or a subscription, ``which`` selects letters, and ``who`` is the name that
    the store records for the audit, by default the user and host of this process.

    :param find_reader: returns the options of a queue or subscription that has its own entries.
    :param find_queue: returns the options of any queue or subscription.
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
        """Return a page of a queue's dead letters, oldest entries first. Nothing changes.

        :param after: ``id`` of the last letter of the previous page.
        :param limit: maximum number of letters.
        :param values: also read the values of the entries.
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
        seen: int | None = None,
    ) -> int:
        """Put dead letters back into the queue, oldest first. The next drain sends them again.

        Each letter keeps its sequence, so that it does not replace a newer entry in the sink.

        :param limit: maximum number of letters.
        :param lock_timeout: seconds to wait for drains that are working on the same units.
        :param seen: how many retries and drops (:meth:`count_acts`) were known to who decided on this retry.
        :returns: the number of letters that were put back.
        :raises LockNotAvailable: the drains did not end in time.
        :raises InvalidArgument: letters were retried or dropped since ``seen``; nothing was changed.
        """
        queue, who = self._find_reader(queue_id), who or user_at_host()
        moved = retry_dead_letters(
            self._database, queue, which, who=who, limit=limit, lock_timeout=lock_timeout, seen=seen
        )
        log.info("%s put %d dead letters of %s back into the queue: %s", who, moved, queue_id, which.shown() or "any")
        return moved

    def drop(
        self,
        queue_id: str,
        which: DeadLetterFilter = ALL_DEAD_LETTERS,
        *,
        limit: int = PAGE,
        who: str | None = None,
        seen: int | None = None,
    ) -> int:
        """Delete dead letters permanently, oldest first. Their entries reach no sink.

        The name and the number are recorded in the store (:meth:`audit`) and in the log.

        :param limit: maximum number of letters.
        :param seen: how many retries and drops (:meth:`count_acts`) were known to who decided on this drop.
        :returns: the number of letters that were deleted.
        :raises InvalidArgument: letters were retried or dropped since ``seen``; nothing was changed.
        """
        queue, who = self._find_reader(queue_id), who or user_at_host()
        with self._database.begin() as work:
            dropped = drop_dead_letters(work, queue, which, who=who, limit=limit, seen=seen)
        log.warning("%s dropped %d dead letters of %s: %s", who, dropped, queue_id, which.shown() or "any")
        return dropped

    def count_acts(self, queue_id: str) -> int:
        """Return how often dead letters of a queue were retried or dropped, as far as that is on record."""
        queue = self._find_reader(queue_id)
        with self._database.read() as work:
            return count_acts(work, queue)

    def give_up_file(self, queue_id: str, file: str, *, who: str | None = None) -> int:
        """Discard the pending entries of a lost file of bulk entries permanently, so that drains skip it.

        The name and the number are recorded in the store (:meth:`audit`) and in the log.

        :param file: the file's name, as ``SegmentLost`` shows it.
        :returns: the number of entries that were discarded.
        :raises InvalidArgument: the file has no pending entries in the queue.
        :raises HasSubscriptions: the queue has subscriptions; pass the id of one of them.
        """
        queue, who = self._find_reader(queue_id), who or user_at_host()
        with self._database.begin() as work:
            discarded = give_up_file(work, queue, file, who=who)
        log.warning("%s discarded %d entries of %s in the file %s", who, discarded, queue_id, file)
        return discarded

    def fall_back(self, queue_id: str, file: str, *, who: str | None = None) -> FellBack:
        """Replace a lost file of a compaction by the files that it was made of, which are kept until the vacuum.

        Rows that the compaction merged are in no other file. They are discarded, and the store records it
        (:meth:`audit`).

        :param file: the file's name, as ``SegmentLost`` shows it.
        :raises InvalidArgument: no pending entries of the file were merged, or its inputs have been deleted.
        :raises HasSubscriptions: the queue has subscriptions; pass the id of one of them.
        :raises LockNotAvailable: others are working on the same units.
        """
        found = fall_back(self._database, self._find_reader(queue_id), file, who=who or user_at_host())
        log.warning("%s", found.line())
        return found

    def audit(self, queue_id: str, *, limit: int = 100) -> Audit:
        """Return what people did to a queue's entries, newest first: retries, accepted losses and promises.

        Acts on a removed subscription are listed under its queue.
        """
        queue = self._find_queue(queue_id)
        with self._database.read() as work:
            return dead_letter_audit(work, queue, limit=limit)
