"""Taking the locks of an attempt away, when Airflow tells its task to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from export_queue.hooks import Described, open_store

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from export_queue.core.locks import Owner
    from export_queue.core.store import StoreSpec

_SECONDS = 2.0
"""Airflow kills a task for good 5 seconds after it has asked it to end."""


def take_locks_away(store: Described[StoreSpec], owner: Owner, *, log: Logger) -> None:
    """Revoke an attempt and what it has submitted, so that others may have its ranges at once.

    It is called from a signal handler, which may have interrupted anything: a thread with a connection of its own
    does the work, and is waited for no longer than there is time. The leases expire anyway.
    """
    thread = threading.Thread(target=_revoke, args=(store, owner, log), daemon=True)
    thread.start()
    thread.join(_SECONDS)


def _revoke(described: Described[StoreSpec], owner: Owner, log: Logger) -> None:
    from export_queue.core.locks import revoke

    try:
        with open_store(described) as store:
            revoke(store.database, owner.task, attempt=owner.attempt)
    except Exception:
        log.exception("The leases of task %s could not be taken away", owner.task)
