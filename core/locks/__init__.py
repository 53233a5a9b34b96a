"""Locks on parts of a queue: rules, attempts of tasks, claims, waiting, leases, critical sections."""

from export_queue.core.locks.attempts import (
    Owner,
    begin_attempt,
    check_attempt,
    end_attempt,
    last_sign,
    revoke,
    serialise,
    show_life,
)
from export_queue.core.locks.claiming import claim, claimable
from export_queue.core.locks.keeping import LeaseKeeper
from export_queue.core.locks.lease import Lease, joined
from export_queue.core.locks.lockbox import (
    COMPACTION_PRIORITY,
    DRAIN_PRIORITY,
    LOAD_PRIORITY,
    check_leases,
    give_back,
    hold,
    release,
    release_all,
    renew,
    standing_locks,
)
from export_queue.core.locks.rules import ROWS, Area, Lock, member
from export_queue.core.locks.showing import (
    Held,
    Holder,
    LockView,
    explained,
    held,
    holders,
    holders_named,
    members_text,
    not_available,
)
from export_queue.core.locks.waiting import acquire

__all__ = [
    "COMPACTION_PRIORITY",
    "DRAIN_PRIORITY",
    "LOAD_PRIORITY",
    "ROWS",
    "Area",
    "Held",
    "Holder",
    "Lease",
    "LeaseKeeper",
    "Lock",
    "LockView",
    "Owner",
    "acquire",
    "begin_attempt",
    "check_attempt",
    "check_leases",
    "claim",
    "claimable",
    "end_attempt",
    "explained",
    "give_back",
    "held",
    "hold",
    "holders",
    "holders_named",
    "joined",
    "last_sign",
    "member",
    "members_text",
    "not_available",
    "release",
    "release_all",
    "renew",
    "revoke",
    "serialise",
    "show_life",
    "standing_locks",
]
