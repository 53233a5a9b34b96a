"""Locks on parts of a queue: claims, leases, fences, the critical section."""

from export_queue.core.locks.lockbox import (
    Holder,
    Lease,
    Owner,
    check_leases,
    claim,
    hold,
    holders,
    not_available,
    release,
    renew,
    revoke,
)

__all__ = [
    "Holder",
    "Lease",
    "Owner",
    "check_leases",
    "claim",
    "hold",
    "holders",
    "not_available",
    "release",
    "renew",
    "revoke",
]
