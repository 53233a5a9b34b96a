"""Contexts of transactions that a test opens itself, step by step, where users have ``store.transaction()``."""

from __future__ import annotations

from typing import Any

from export_queue import Store, TransactionContext
from export_queue.core.client.catalogue import Catalogue
from export_queue.core.transactions import OpenTransaction


def context_of(store: Store, opened: OpenTransaction) -> TransactionContext:
    """Give the context of an open transaction, which nothing commits or aborts by itself."""
    return TransactionContext(catalogue_of(store), opened)


def begin(store: Store, **options: Any) -> TransactionContext:
    """Open a transaction.

    :param options: of :class:`OpenTransaction`.
    """
    return context_of(store, OpenTransaction(store.database, **options))


def opened_by(context: TransactionContext) -> OpenTransaction:
    """Give the open transaction that a context works with, for a test that takes its steps apart."""
    return context._transaction


def catalogue_of(store: Store) -> Catalogue:
    """Give what a store knows of its tables, queues and observed columns."""
    return store._catalogue
