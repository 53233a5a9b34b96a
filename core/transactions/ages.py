"""From when the ages of cells count, in one transaction: its reads find the same ones alive from first to last.

Ids carry the time at which their transactions began, so the age of a version needs no column of its own. But ids run
ahead of the clock once that has stepped forward and back. So ages count by the clock: from the snapshot, and not from
before the time to which clean-up has deleted what had expired.
"""

from __future__ import annotations

from export_queue.core.errors import RegistrationLost, SnapshotTooOld
from export_queue.core.store import Database, queries


def aged_from(database: Database, *, taken_ms: int) -> int:
    """Find the time from which a transaction counts ages, in milliseconds.

    :param taken_ms: when it took its snapshot.
    """
    with database.read() as work:
        return max(taken_ms, queries.cleanup.expiry_ms(work))


def aged_from_start(database: Database, transaction: int) -> int:
    """Find that of a long transaction, the same in all its processes: while it is in progress clean-up waits for it.

    :raises RegistrationLost: the transaction has ended.
    """
    with database.read() as work:
        started_ms = queries.registrations.started_ms(work, transaction)
        if started_ms is None:
            raise RegistrationLost(f"transaction {transaction} has ended")
        # Its own writes are young, also where ids follow the clock from behind.
        return max(min(started_ms, transaction // 1_000_000), queries.cleanup.expiry_ms(work))


def require_young(database: Database, aged_from_ms: int) -> None:
    """Check, after a read that found nothing, that clean-up has deleted nothing which its transaction finds alive.

    :raises SnapshotTooOld: it may have.
    """
    with database.read() as work:
        expiry_ms = queries.cleanup.expiry_ms(work)
    if expiry_ms > aged_from_ms:
        raise SnapshotTooOld(
            f"the transaction counts ages of cells from {aged_from_ms} ms, clean-up has deleted what had expired by"
            f" {expiry_ms} ms"
        )
