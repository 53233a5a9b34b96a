"""Locks on parts of a queue: attempts of tasks, claims, leases, fences, the critical section."""

from export_queue.core.locks.attempts import Owner, begin_attempt, check_attempt, end_attempt, revoke, serialise
from export_queue.core.locks.lockbox import (
    Holder,
    Lease,
    check_leases,
    choose,
    claim,
    hold,
    holders,
    joined,
    not_available,
    release,
    release_all,
    renew,
)

__all__ = [
    "Holder",
    "Lease",
    "Owner",
    "begin_attempt",
    "check_attempt",
    "check_leases",
    "choose",
    "claim",
    "end_attempt",
    "hold",
    "holders",
    "joined",
    "not_available",
    "release",
    "release_all",
    "renew",
    "revoke",
    "serialise",
]
