"""Marks: what a reader's sink lacks because somebody lifted a protection, and what somebody promised.

Each is a record in the store: what was done, by whom, when, with which numbers. It stays open, and drains, status,
reports and metrics show it, until a first load makes it good or somebody declares the sink complete. Acts on the store
as a whole leave marks, too, which status shows.
"""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.stored_queues import find_queue, readers_of
from export_queue.core.store import Database, Reading, Work, queries

LOSSES = ("readmit", "rebind", "drop", "give up", "unsubscribe")
"""Acts after which a sink lacks something."""
PROMISES = ("waive", "complete")
"""Acts by which somebody declared that it lacks nothing."""
STORE_ACTS = ("adopt", "floor", "forget", "close key")
"""Acts on the store as a whole that lift a protection."""
MARKS = (*LOSSES, *PROMISES, *STORE_ACTS)
KEPT = ("readmit", "rebind")
"""Acts whose marks stay as long as they are open. Other acts are forgotten after a year."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One act that lifted a protection, and that nothing has made good yet."""

    act: str
    """One of :data:`MARKS`."""
    who: str
    at_ms: int
    count: int
    """How many entries it concerns; 0 if unknown."""
    details: Mapping[str, Any]

    @property
    def is_loss(self) -> bool:
        """Whether the act made the sink lack something."""
        return self.act in LOSSES

    def line(self) -> str:
        """Say it in one line."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return f"{_told(self.act, self.count, self.details)}, {at:%Y-%m-%d %H:%M:%S} UTC, by {self.who}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        return {
            "act": self.act,
            "is_loss": self.is_loss,
            "who": self.who,
            "at": at,
            "entries": self.count,
            "details": dict(self.details),
            "text": self.line(),
        }


def user_at_host() -> str:
    """Return who acts, for the record: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _told(act: str, count: int, details: Mapping[str, Any]) -> str:
    drained = f"drains had delivered {count} entries to it that it may lack" if count else "it lacks what was drained"
    if details.get("older"):
        drained += (
            ", and it may hold records that were deleted since, which no first load removes: empty it, readmit it then"
        )
    if act == "readmit":
        return f"sink {details['sink']} was readmitted although it had lost data: {drained}"
    if act == "rebind":
        return f"rebound from sink {details['before']} to {details['sink']}: {drained}"
    if act == "drop":
        which = f" ({json.dumps(details)})" if details else ""
        return f"{count} dead letters{which} were dropped: their entries are in no sink"
    if act == "give up":
        return f"{count} entries in the lost file {details['file']} were given up: they are in no sink"
    if act == "unsubscribe":
        entries = details["entries"]
        letters = count - entries
        return f"subscription {details['subscription']} was removed with {entries} entries and {letters} dead letters"
    if act == "adopt":
        return f"the restored store was adopted: {count} transactions were in progress at the backup and have ended"
    if act == "floor":
        return f"the store was rebuilt with floor {details['floor']}: what waited in its predecessor is lost"
    if act == "forget":
        return f"invalid id {details['transaction']} was forgotten, under which {details['left_to']} had left data"
    if act == "close key":
        return f"idempotency key {details['idempotency_key']!r} was closed: the same work may take effect once more"
    told = "the first load was waived" if act == "waive" else "the sink was declared complete"
    if details["losses"]:
        return f"{told} with {details['losses']} open losses of {count} entries"
    return told + (f": {count} entries were delivered to other readers before this one existed" if count else "")


def remedy(queue_id: str) -> str:
    """Say how a sink that lacks something is made complete, and declared so."""
    again = "make a first load of the subscription" if "/" in queue_id else "add all records that it lacks to the queue"
    return f"{again}, or promise that nothing is missing: export-queue complete {queue_id}"


def marks(work: Reading, queue_id: str) -> list[Mark]:
    """Read the open marks of a reader, oldest first."""
    return [_mark(row) for row in queries.acts.open_marks(work, MARKS, queue_id=queue_id)]


def losses(work: Reading, queue_id: str) -> list[Mark]:
    """Read what a reader's sink lacks, oldest first."""
    return [_mark(row) for row in queries.acts.open_marks(work, LOSSES, queue_id=queue_id)]


def _mark(row: Mapping[str, Any]) -> Mark:
    details = json.loads(row["selection"])
    waited = details["entries"] if row["act"] == "unsubscribe" else 0
    return Mark(row["act"], row["who"], row["at_ms"], row["letters"] + waited, details)


def mark_incomplete(
    work: Work, queue: Queue, act: str, *, who: str, details: Mapping[str, Any], number: int | None = None
) -> None:
    """Record that a reader's sink lacks what was drained before; of a subscription, the first load counts as missing.

    :param number: the mark's number, if the caller has drawn it.
    """
    check_who(who)
    drained = queries.reports.count_acknowledged(work, queue.id)
    queries.acts.record(work, queue_id=queue.id, act=act, who=who, letters=drained, selection=details, number=number)
    if queue.parent is not None:
        queries.queues.alter_queue(work, queue.number, first_load="missing")


def make_good(work: Work, queue: Queue, *, by: str, before: int | None = None, namesakes: bool = True) -> list[Mark]:
    """Close the marks of a reader: its sink has been given everything, or somebody has promised that it has.

    :param by: what did so, for the record.
    :param before: only marks with a lower number, those that a load which began then makes good.
    :param namesakes: whether what a removed subscription of the same name lacked is made good, too.
    :returns: the losses that were open.
    """
    rows = queries.acts.open_marks(work, (*LOSSES, *PROMISES), queue_id=queue.id)
    if queue.parent is not None and namesakes:
        removed = queries.acts.open_marks(work, ("unsubscribe",), queue_id=queue.parent)
        rows += [row for row in removed if json.loads(row["selection"])["subscription"] == queue.name]
    closed = rows if before is None else _made_good([row for row in rows if row["id"] < before])
    queries.acts.clear_marks(work, [row["id"] for row in closed], by=by)
    return [mark for mark in map(_mark, closed) if mark.is_loss]


def _made_good(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out marks of sinks in an older state, of which a load removes nothing, unless the sink was lost since."""
    lost = [row["id"] for row in rows if row["act"] == "readmit" and not _is_older(row)]
    return [row for row in rows if not _is_older(row) or row["id"] < max(lost, default=0)]


def _is_older(row: Mapping[str, Any]) -> bool:
    return row["act"] in KEPT and bool(json.loads(row["selection"]).get("older"))


def note_first_load(work: Work, reader: Queue, *, load: int) -> None:
    """Close the marks that a first load has made good; if its sink lost data since it began, it is missing again.

    :param load: number of the load's transaction.
    """
    make_good(work, reader, by="first load", before=load)
    if any(mark.act in KEPT and not mark.details.get("older") for mark in losses(work, reader.id)):
        queries.queues.alter_queue(work, reader.number, first_load="missing")


def record_promise(work: Work, queue: Queue, act: str, *, who: str) -> int:
    """Record that somebody promises that a reader's sink lacks nothing; returns how many losses were open."""
    check_who(who)
    was_missing = queries.readers.waive_first_load(work, queue.number)
    if act == "waive" and not was_missing:
        return 0
    closed = make_good(work, queue, by=f"{act}, by {who}")
    if closed or was_missing:
        lacking = sum(mark.count for mark in closed) if closed else _delivered_to_others(work, queue)
        details = {"losses": len(closed), "entries": lacking}
        queries.acts.record(work, queue_id=queue.id, act=act, who=who, letters=lacking, selection=details)
    return len(closed)


def _delivered_to_others(work: Reading, reader: Queue) -> int:
    """Count what drains had delivered of a queue before a subscription of it existed, as far as reports are kept."""
    row = queries.queues.queue_row(work, reader.id)
    if reader.parent is None or row is None:
        return 0
    others = [reader.parent, *(other.id for other in readers_of(work, find_queue(work, reader.parent)))]
    return max(queries.reports.count_acknowledged(work, other, before_ms=row["created_ms"]) for other in others)


def declare_complete(database: Database, queue_id: str | None, *, who: str) -> int:
    """Record the promise that a reader's sink lacks nothing.

    :param queue_id: the queue or subscription; None for the marks of the store as a whole.
    :param who: who promises.
    :returns: how many marks of losses were open.
    """
    check_who(who)
    with database.begin() as work:
        if queue_id is not None:
            return record_promise(work, find_queue(work, queue_id), "complete", who=who)
        found = [row["id"] for row in queries.acts.open_marks(work, STORE_ACTS, queue_id="")]
        queries.acts.clear_marks(work, found, by=f"complete, by {who}")
        return len(found)


def check_who(who: str) -> None:
    """Refuse an act without a name for its record."""
    if not who:
        raise InvalidArgument("who: expected a name for the record, found nothing")
