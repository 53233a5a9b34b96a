"""Adding to a queue inside a transaction."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from export_queue.core.errors import EntryError
from export_queue.core.queue.buckets import hash_of
from export_queue.core.queue.queue import Queue
from export_queue.core.store import entry_key
from export_queue.core.transactions import OpenTransaction


class QueueWriter:
    """One queue in a transaction. An added entry exists if and only if the transaction commits (I3).

    The commit delivers it to each reader of the queue.
    """

    def __init__(self, transaction: OpenTransaction, queue: Queue) -> None:
        self._transaction = transaction
        self._queue = queue
        self._added: set[bytes] = set()

    @property
    def queue(self) -> Queue:
        """The options of the queue."""
        return self._queue

    def add(self, key: Any, value: Any, *, exclusive: bool = False, replace: bool = False) -> None:
        """Add an entry. Its sequence is the transaction's id, or in a bound transaction a number drawn at the end.

        :param key: a value for the queue's key codec; 1–1024 bytes encoded.
        :param value: a value for the queue's value codec; None deletes the record.
        :param exclusive: make the key a conflict key: if two overlapping transactions add it, only one commits.
        :param replace: allow a key that this transaction has already added; the new value replaces the old one.
        :raises EntryError: key or value is refused, or the key was already added.
        """
        checked = self._checked([(key, value)], () if replace else self._added)
        self._put(checked, exclusive=exclusive)
        self._added.update(checked)

    def add_many(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Add pairs of key and value, all or none.

        :raises EntryError: a key or value is refused, or a key comes twice or was already added.
        """
        checked = self._checked(entries, self._added)
        self._put(checked)
        self._added.update(checked)

    def _checked(self, entries: Iterable[tuple[Any, Any]], known: Container[bytes]) -> dict[bytes, bytes | None]:
        """Encode entries, and refuse a key that comes twice or is known."""
        checked: dict[bytes, bytes | None] = {}
        for key, value in entries:
            encoded = self._queue.encode_key(key)
            payload = self._queue.encode_value(value, key=key)
            if encoded in known or encoded in checked:
                raise EntryError(
                    f"key {key!r} was added to queue {self._queue.id!r} before in this transaction",
                    hint="pass replace=True if the new value counts",
                )
            checked[encoded] = payload
        return checked

    def _put(self, checked: Mapping[bytes, bytes | None], *, exclusive: bool = False) -> None:
        queue = self._queue
        # Nothing conflicts with a first load, because all newer entries have higher sequences.
        guarded = (exclusive or queue.exclusive) and queue.parent is None
        self._transaction.add_entries(
            {(queue.number, hash_of(key), key): value for key, value in checked.items()},
            conflict_keys=[entry_key(queue.number, key) for key in checked] if guarded else (),
        )

    def forget_added(self) -> None:
        """Free the memory of added keys. If one of them is added again, the later value replaces the earlier one."""
        self._added.clear()
