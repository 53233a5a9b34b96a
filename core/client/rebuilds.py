"""Rebuilds of targets, as the users of a store hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from export_queue.core import verify
from export_queue.core.drain import StoreHandle
from export_queue.core.queue import user_at_host
from export_queue.core.sinks import SinkSpec
from export_queue.core.verify import POINTER, Rebuild, RebuildRequest

LOCK_TIMEOUT = 600.0
"""Default number of seconds to wait for drains."""

# Inside the class below, `list` is its method.
AllRebuilds = list[Rebuild]


class Rebuilds:
    """The rebuilds of a store; :attr:`Store.rebuilds` is one.

    A rebuild replaces the target of a subscription by another one, with another mapping, other shards, columns or
    another exporter, while producers, drains and readers of the sink continue.

    ::

        store.rebuilds.start("airports/search", sink, new_options={"index": "$collection-2"})
        drain(store, "airports/search-2", sink)
        store.rebuilds.switch("airports/search", sink)
        store.rebuilds.finish("airports/search")

    In all methods, ``reader`` is the subscription whose target is replaced, and ``sink`` describes its server. Options
    of the sink that decide which record is written are those of the two subscriptions. A step that was killed, or has
    taken effect, may be repeated.
    """

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def start(
        self,
        reader: str,
        sink: SinkSpec,
        *,
        new_options: Mapping[str, Any],
        pointer: str = POINTER,
        exporter: str | None = None,
        name: str | None = None,
        source: str = "state",
        collections: Sequence[str] = (),
        settle_timeout: float = 60.0,
        who: str | None = None,
    ) -> Rebuild:
        """Add the subscription that fills the new target, with its first load. Then drain it, as any subscription.

        :param new_options: options of the sink for the new target, such as ``index``, ``table``, ``columns`` or
            ``key``. Others are those of the old target.
        :param pointer: the name that readers of the sink use: an alias, a view, or a key with a template of keys. It
            may have the field ``$collection``. If it does not exist, it is made, and leads to the old target.
        :param exporter: import path of the new exporter; by default the old one.
        :param name: name of the new subscription; by default that of the old one with the next number.
        :param source: where the full content of the queue comes from: ``state``, or the import path ``module:name`` of
            a function or source, as for :func:`~export_queue.verify`.
        :param collections: the collections that have a pointer; by default the one that has the queue's name.
        :param settle_timeout: seconds to wait for older transactions to end.
        :returns: the rebuild, in the phase ``following``.
        :raises InvalidArgument: the reader is no subscription or was not drained yet, the new one exists, or a rebuild
            was started with other arguments.
        :raises SinkConfigurationError: the sink has no pointers, a pointer is taken, or the new target has records.
        :raises StateIncomplete: the first load of the state is missing.
        :raises TransactionsInProgress: older transactions did not end in time; the error names them.
        """
        request = RebuildRequest(
            reader=reader,
            pointer=pointer,
            new_options=new_options,
            exporter=exporter,
            name=name,
            source=source,
            collections=collections,
            who=who or user_at_host(),
        )
        return verify.start(self._store, sink, request, settle_timeout=settle_timeout)

    def status(self, reader: str) -> Rebuild:
        """Return the last rebuild of a reader.

        :raises InvalidArgument: it had none.
        """
        return verify.find_rebuild(self._store.database, reader)

    def list(self) -> AllRebuilds:
        """Return the last rebuild of each reader, by name."""
        return verify.list_rebuilds(self._store.database)

    def switch(
        self, reader: str, sink: SinkSpec, *, force: bool = False, lock_timeout: float = LOCK_TIMEOUT
    ) -> Rebuild:
        """Verify the new target, deliver what is pending, and let the pointers lead to it.

        Drains of the old target wait at the end, so that the new target has everything that readers have seen.

        :param force: switch without verifying, and despite dead letters.
        :param lock_timeout: seconds to wait for drains.
        :returns: the rebuild, in the phase ``switched``.
        :raises RebuildRefused: the new target differs from the queue, or has dead letters; the error has samples.
        :raises LockNotAvailable: drains of the old target did not end in time.
        :raises LeaseLost: another step has taken over.
        """
        return verify.switch(self._store, reader, sink, force=force, lock_timeout=lock_timeout)

    def back(self, reader: str, sink: SinkSpec, *, lock_timeout: float = LOCK_TIMEOUT) -> Rebuild:
        """Deliver what is pending to the old target, and let the pointers lead to it again.

        :param lock_timeout: seconds to wait for drains.
        :returns: the rebuild, in the phase ``following``.
        :raises LockNotAvailable: drains of the new target did not end in time.
        :raises LeaseLost: another step has taken over.
        """
        return verify.back(self._store, reader, sink, lock_timeout=lock_timeout)

    def finish(self, reader: str, *, who: str | None = None) -> Rebuild:
        """Remove the old subscription. Its target stays, and no longer follows; remove it when nobody reads it.

        :returns: the rebuild, in the phase ``finished``.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        return verify.finish(self._store, reader, who=who or user_at_host())

    def cancel(self, reader: str, *, who: str | None = None) -> Rebuild:
        """Remove the new subscription before the switch, or after ``back``. Its target stays; remove it.

        :returns: the rebuild, in the phase ``cancelled``.
        :raises QueueBusy: transactions that add to the queue were in progress for ten seconds.
        """
        return verify.cancel(self._store, reader, who=who or user_at_host())
