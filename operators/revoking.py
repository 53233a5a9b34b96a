"""Revoking the locks of an attempt when Airflow tells its task to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from export_queue.hooks import Described, open_store

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from export_queue.core.locks import Owner
    from export_queue.core.store import StoreSpec

_SECONDS = 2.0
"""Airflow kills a task 5 seconds after it has asked the task to end."""


def take_locks_away(store: Described[StoreSpec], owner: Owner, *, log: Logger) -> None:
    """Revoke an attempt and its submissions, so that others can claim its ranges at once.

    This is called from a signal handler, which may have interrupted anything. Therefore a thread with its own
    connection does the work, for which this waits a limited time. The leases expire anyway.
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
        log.exception("The leases of task %s could not be revoked", owner.task)
