"""Contexts of transactions that a test opens itself, step by step, where users have ``store.transaction()``."""

from __future__ import annotations

from typing import Any

from export_queue.core.client import Store, TransactionContext
from export_queue.core.transactions import OpenTransaction


def context_of(store: Store, opened: OpenTransaction) -> TransactionContext:
    """Give the context of an open transaction, which nothing commits or aborts by itself."""
    return TransactionContext(store._catalogue, opened)


def begin(store: Store, **options: Any) -> TransactionContext:
    """Open a transaction.

    :param options: of :class:`OpenTransaction`.
    """
    return context_of(store, OpenTransaction(store.database, **options))
