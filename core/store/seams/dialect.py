"""One kind of database as the store uses it: the seams that it implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.store.seams.administration import Administration, Server
from export_queue.core.store.seams.driver import Driver
from export_queue.core.store.seams.locks import LockSteps
from export_queue.core.store.seams.transactions import TransactionSteps
from export_queue.core.store.seams.user_connections import UserConnections
from export_queue.core.store.seams.wake_ups import WakeUps

if TYPE_CHECKING:
    from export_queue.core.store.sqlite.file import StoreFile


@dataclass(slots=True, kw_only=True)
class Dialect:
    """The seams of one database. A seam that is None names something that this kind of database does not need."""

    name: str
    driver: Driver
    steps: TransactionSteps
    administration: Administration
    locks: LockSteps | None = None
    """None where there is one writer at a time: its SQL transaction holds everything."""
    wake_ups: WakeUps | None = None
    """None where commits wake nobody: followers poll."""
    user_connections: UserConnections | None = None
    """None where the connections of users can be used as they are."""
    server: Server | None = None
    """None where the store is a file."""
    file: StoreFile | None = None
    """The file that is the store. No process may inherit its locks."""
