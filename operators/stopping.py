"""What a task does when Airflow tells it to stop: it revokes its locks, and interrupts its work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.hooks import Described, open_store
from export_queue.hooks.rendered import RenderedTask

if TYPE_CHECKING:
    from export_queue.core.locks import Owner
    from export_queue.core.store import StoreSpec

_SECONDS = 2.0
"""Airflow kills a task 5 seconds after it has asked the task to end."""


class StoppableTask(RenderedTask):
    """A task that works under locks of a store."""

    _is_killed = False
    _store: Described[StoreSpec] | None = None
    """The store, once the task holds locks that others may need at once."""
    _owner: Owner | None = None
    """This attempt of the task; likewise."""
    _works_in: int | None = None
    """The thread that :meth:`on_kill` interrupts."""

    def on_kill(self) -> None:
        """Stop the work and release its locks. What was delivered or published stays so.

        Airflow calls this from a signal handler, in the thread that works.
        """
        self._is_killed = True
        self.take_locks_away()
        if self._works_in == threading.get_ident():
            self.check_killed()

    def check_killed(self, *_: Any) -> None:
        """Raise an error if Airflow has told the task to stop."""
        if self._is_killed:
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let :meth:`on_kill` interrupt a block."""
        self._works_in = threading.get_ident()
        try:
            yield
        finally:
            self._works_in = None

    def take_locks_away(self) -> None:
        """Revoke this attempt and its submissions, so that others can claim its ranges at once.

        A signal handler calls this, which may have interrupted anything. Therefore a thread with its own connection
        does the work, for which this waits a limited time. The leases expire anyway.
        """
        if self._store is not None and self._owner is not None:
            thread = threading.Thread(target=self._revoke, args=(self._store, self._owner), daemon=True)
            thread.start()
            thread.join(_SECONDS)

    def _revoke(self, described: Described[StoreSpec], owner: Owner) -> None:
        from export_queue.core.locks import revoke

        try:
            with open_store(described) as store:
                revoke(store.database, owner.task, attempt=owner.attempt)
        except Exception:
            self.log.exception("The leases of task %s could not be revoked", owner.task)
