"""Marks: what a reader's sink lacks because somebody lifted a protection, and what somebody promised.

Each mark is a record in the store: what was done, by whom, when, with which numbers. It stays open, and drains, status,
reports and metrics show it, until a first load makes it good or somebody declares the sink complete. Acts on the whole
store leave marks, too, which the status shows.
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
"""Acts by which somebody declared that the sink lacks nothing."""
STORE_ACTS = ("adopt", "floor", "forget", "close key")
"""Acts on the whole store that lift a protection."""
MARKS = (*LOSSES, *PROMISES, *STORE_ACTS)
KEPT = ("readmit", "rebind")
"""Acts whose marks are kept as long as they are open. Records of other acts are deleted after a year."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An act that lifted a protection and has not been made good."""

    act: str
    """One of :data:`MARKS`."""
    who: str
    at_ms: int
    count: int
    """Number of affected entries; 0 if unknown."""
    details: Mapping[str, Any]

    @property
    def is_loss(self) -> bool:
        """Whether the sink lacks something because of the act."""
        return self.act in LOSSES

    def line(self) -> str:
        """Describe the act in one line."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return f"{_text(self.act, self.count, self.details)}, {at:%Y-%m-%d %H:%M:%S} UTC, by {self.who}"

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
    """Return user and host, as a name for records."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _text(act: str, count: int, details: Mapping[str, Any]) -> str:
    drained = f"it may lack {count} entries that drains had delivered to it" if count else "it lacks what was drained"
    if details.get("older"):
        drained += ", and it may hold records that were deleted since, which no load removes: empty it, then readmit it"
    if act == "readmit":
        return f"sink {details['sink']} was readmitted although it had lost data: {drained}"
    if act == "rebind":
        return f"rebound from sink {details['before']} to {details['sink']}: {drained}"
    if act == "drop":
        which = f" ({json.dumps(details)})" if details else ""
        return f"{count} dead letters{which} were dropped: their entries are in no sink"
    if act == "give up":
        return f"{count} entries in the lost file {details['file']} were discarded: they are in no sink"
    if act == "unsubscribe":
        entries = details["entries"]
        letters = count - entries
        return f"subscription {details['subscription']} was removed with {entries} entries and {letters} dead letters"
    if act == "adopt":
        return f"the restored store was adopted: {count} transactions were in progress at the backup and have ended"
    if act == "floor":
        return f"the store was rebuilt with floor {details['floor']}: pending entries of its predecessor are lost"
    if act == "forget":
        return f"invalid id {details['transaction']} was forgotten, under which {details['left_to']} had left data"
    if act == "close key":
        return f"idempotency key {details['idempotency_key']!r} was closed: the same work may take effect again"
    text = "the first load was waived" if act == "waive" else "the sink was declared complete"
    if details["losses"]:
        lost = details["losses"]
        return f"{text} with {lost} open loss{'' if lost == 1 else 'es'} of {count} entries"
    return text + (f": {count} entries were delivered to other readers before this one existed" if count else "")


def remedy(queue_id: str) -> str:
    """Describe how to make a sink complete, or declare it complete."""
    again = "make a first load of the subscription" if "/" in queue_id else "add all records that it lacks to the queue"
    return f"{again}, or promise that nothing is missing: export-queue complete {queue_id}"


def marks(work: Reading, queue_id: str) -> list[Mark]:
    """Read the open marks of a reader, oldest first."""
    return [_mark(row) for row in queries.acts.open_marks(work, MARKS, queue_id=queue_id)]


def losses(work: Reading, queue_id: str) -> list[Mark]:
    """Read the open losses of a reader, oldest first."""
    return [_mark(row) for row in queries.acts.open_marks(work, LOSSES, queue_id=queue_id)]


def described_act(row: Mapping[str, Any]) -> str:
    """Describe a recorded act in one line."""
    return _mark(row).line()


def _mark(row: Mapping[str, Any]) -> Mark:
    details = json.loads(row["selection"])
    waited = details["entries"] if row["act"] == "unsubscribe" else 0
    return Mark(row["act"], row["who"], row["at_ms"], row["letters"] + waited, details)


def mark_incomplete(
    work: Work, queue: Queue, act: str, *, who: str, details: Mapping[str, Any], number: int | None = None
) -> None:
    """Record that a reader's sink lacks what was drained before. A subscription's first load counts as missing then.

    :param number: number of the mark, if the caller has drawn it.
    """
    check_who(who)
    drained = queries.reports.count_acknowledged(work, queue.id)
    queries.acts.record(work, queue_id=queue.id, act=act, who=who, letters=drained, selection=details, number=number)
    if queue.parent is not None:
        queries.queues.alter_queue(work, queue.number, first_load="missing")


def make_good(work: Work, queue: Queue, *, by: str, before: int | None = None, namesakes: bool = True) -> list[Mark]:
    """Close the marks of a reader whose sink has received everything, or whose completeness was promised.

    :param by: what made it good, for the record.
    :param before: close only marks with a lower number, which a load that began then makes good.
    :param namesakes: whether to close the mark of a removed subscription with the same name, too.
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
    """Leave out marks of sinks restored to an older state, which no load repairs, unless the sink was lost since."""
    lost = [row["id"] for row in rows if row["act"] == "readmit" and not _is_older(row)]
    return [row for row in rows if not _is_older(row) or row["id"] < max(lost, default=0)]


def _is_older(row: Mapping[str, Any]) -> bool:
    return row["act"] in KEPT and bool(json.loads(row["selection"]).get("older"))


def note_first_load(work: Work, reader: Queue, *, load: int) -> None:
    """Close the marks that a first load made good. If its sink lost data during the load, the load is missing again."""
    make_good(work, reader, by="first load", before=load)
    if any(mark.act in KEPT and not mark.details.get("older") for mark in losses(work, reader.id)):
        queries.queues.alter_queue(work, reader.number, first_load="missing")


def record_promise(work: Work, queue: Queue, act: str, *, who: str) -> int:
    """Record the promise that a reader's sink lacks nothing, and return the number of open losses."""
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
    """Count the entries delivered before a subscription existed, as far as reports are kept."""
    row = queries.queues.queue_row(work, reader.id)
    if reader.parent is None or row is None:
        return 0
    others = [reader.parent, *(other.id for other in readers_of(work, find_queue(work, reader.parent)))]
    return max(queries.reports.count_acknowledged(work, other, before_ms=row["created_ms"]) for other in others)


def declare_complete(database: Database, queue_id: str | None, *, who: str) -> int:
    """Record the promise that a reader's sink lacks nothing, and return the number of open losses.

    :param queue_id: the queue or subscription; None for the marks of the whole store.
    """
    check_who(who)
    with database.begin() as work:
        if queue_id is not None:
            return record_promise(work, find_queue(work, queue_id), "complete", who=who)
        found = [row["id"] for row in queries.acts.open_marks(work, STORE_ACTS, queue_id="")]
        queries.acts.clear_marks(work, found, by=f"complete, by {who}")
        return len(found)


def check_who(who: str) -> None:
    if not who:
        raise InvalidArgument("who: expected a name for the record, found nothing")
