"""The protocol of sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from export_queue.core.queue import Entries, Queue, Range
from export_queue.core.store import Database


class Content(Protocol):
    """The full content of a queue at one settled cut: every transaction up to it is in, no later one."""

    @property
    def cut(self) -> int:
        """The content holds every committed transaction with an id up to this one, and no other. No transaction with
        an id up to it can commit any more.
        """

    @property
    def is_ranked(self) -> bool:
        """Whether the sequences of :meth:`pages` are those of the entries. If not, only documents can be compared."""

    def pages(self, within: Range) -> Iterator[Entries]:
        """Read the latest entry of each key, ascending by bucket and key, in pages of bounded size.

        A value of None means that the key was deleted. Such entries may be missing, since tombstones are not kept
        forever. It may be called repeatedly, for any ranges, and gives the same entries each time.

        :param within: buckets of the current layout of the queue.
        """


class Source(Protocol):
    """The full content of a queue, kept somewhere: the queue's own state, a table, or a user's function."""

    def open(self, database: Database, queue: Queue) -> AbstractContextManager[Content]:
        """Open the content at a settled cut. It stays readable until the context ends.

        :param database: the store.
        :param queue: the queue to which entries are added; of a subscription, its queue.
        """
