"""Adding to a queue inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from export_queue.core.errors import EntryError
from export_queue.core.queue.buckets import hash_of
from export_queue.core.queue.options import Queue
from export_queue.core.store import entry_key
from export_queue.core.transactions import OpenTransaction


class QueueWriter:
    """One queue, bound to its transaction: an added entry exists if and only if the transaction commits (I3).

    The commit gives it to each reader of the queue.
    """

    def __init__(self, transaction: OpenTransaction, queue: Queue) -> None:
        self._transaction = transaction
        self._queue = queue
        self._added: set[bytes] = set()

    def add(self, key: Any, value: Any, *, exclusive: bool = False, replace: bool = False) -> None:
        """Add an entry; its sequence is the transaction's id, or in a bound one a number that is drawn at the end.

        :param key: by the queue's key codec, 1–1024 bytes encoded.
        :param value: by the queue's value codec; None says that the record is gone.
        :param exclusive: make the key a conflict key: of two overlapping transactions that add it, one commits.
        :param replace: this transaction has added the key before, and the new value counts.
        :raises EntryError: key or value is refused, or the key was added before.
        """
        encoded = self._queue.encode_key(key)
        payload = self._queue.encode_value(value, key=key)
        if encoded in self._added and not replace:
            raise EntryError(
                f"key {key!r} was added to queue {self._queue.id!r} before in this transaction",
                hint="pass replace=True if the new value counts",
            )
        place = (self._queue.number, hash_of(encoded), encoded)
        # Nothing conflicts with a first load: whatever is newer has a higher sequence.
        guarded = (exclusive or self._queue.exclusive) and self._queue.parent is None
        conflict_key = entry_key(self._queue.number, encoded) if guarded else None
        self._transaction.add_entry(place, payload, conflict_key=conflict_key)
        self._added.add(encoded)

    def add_many(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add pairs of key and value."""
        for key, value in entries:
            self.add(key, value)

    def forget_added(self) -> None:
        """Keep no more keys in memory: of those that are added again, the later value counts."""
        self._added.clear()
