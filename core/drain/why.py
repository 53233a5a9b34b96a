"""The history of one key: its last known commit, pending entries, dead letters, and the drains of its unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from export_queue.core.drain.exported import is_exported
from export_queue.core.drain.report import DrainReport
from export_queue.core.drain.token import ExportToken
from export_queue.core.errors import (
    InvalidArgument,
    NotExported,
    SegmentLost,
    SegmentUnavailable,
    StateIncomplete,
    UnknownQueue,
)
from export_queue.core.queue import (
    DeadLetter,
    DeadLetterFilter,
    Queue,
    QueuedEntry,
    Range,
    bucket,
    find_state,
    hash_of,
    hidden_seqs,
    in_all_layouts,
    list_dead_letters,
    queue_added_to,
)
from export_queue.core.segments import peek
from export_queue.core.state import LAST_SEQ, latest_entry
from export_queue.core.store import Database, Reading, entry_key, identity_of, queries
from export_queue.core.transactions import take_snapshot

MOST_SHOWN = 100
"""Maximum number of entries, and of dead letters, in a story."""
_REPORTS = 1000
"""Number of newest reports that are searched."""


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The newest commit of a key that the store knows of."""

    seq: int | None
    """None if it is not known: a bound transaction leaves a conflict key without the time."""
    known_by: Literal["entry", "dead letter", "conflict key", "state"]


@dataclass(frozen=True, slots=True)
class FinishedDrain:
    """A finished drain."""

    finished_ms: int
    report: DrainReport


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStory:
    """What the store knows about one key of a queue."""

    queue: Queue
    key: bytes
    bucket: int
    unit: Range
    last_commit: LastCommit | None
    """None if the store has no trace of one: the key was never committed, or all its entries were drained."""
    queued: tuple[QueuedEntry, ...]
    """Pending committed entries, oldest first, at most 100."""
    not_committed: tuple[int, ...]
    """Sequences of entries of long transactions that are in progress or ended without a commit."""
    dead: tuple[DeadLetter, ...]
    """Oldest first, at most 100."""
    last_drain: FinishedDrain | None
    """The newest drain that was asked to drain the key's unit, whether or not it got that far."""
    exported: bool | None
    """Whether the sink has acknowledged the last commit; None if no commit is known. A queue with a state knows it."""
    possible_delivery: FinishedDrain | None
    """The newest drain that may have delivered the key. Reports count entries without naming them, so this does not
    prove a delivery, nor that the key was ever committed."""


def why(database: Database, queue: Queue, key: bytes) -> KeyStory:
    """Return the history of an encoded key."""
    remembered = _remembered(database, queue, key)
    snapshot = take_snapshot(database)
    with database.read() as work:
        queued = peek(work, queue, snapshot, key=key, limit=MOST_SHOWN)
        dead = list_dead_letters(work, queue, DeadLetterFilter(key=key), limit=MOST_SHOWN)
        added_to = queue_added_to(work, queue)
        hidden = hidden_seqs(work, added_to, snapshot, key, limit=MOST_SHOWN)
        if added_to.number != queue.number:  # what a first load adds to the subscription alone
            hidden += hidden_seqs(work, queue, snapshot, key, limit=MOST_SHOWN)
        writer = queries.versions.last_writer(work, entry_key(added_to.number, key))
        newest = finished_drains(work, queue.id, limit=_REPORTS)
        busy = finished_drains(work, queue.id, idle=False, limit=_REPORTS)
        layouts = in_all_layouts(work, queue).layouts()
    units = [layout.unit_of(bucket(key, layout.buckets)) for layout in layouts]
    commit = last_commit([one.position.seq for one in queued], [one.position.seq for one in dead], writer, remembered)
    delivered = commit.seq if commit is not None and commit.known_by in ("conflict key", "state") else None
    return KeyStory(
        queue=queue,
        key=key,
        bucket=bucket(key, queue.buckets),
        unit=units[-1],
        last_commit=commit,
        queued=tuple(queued),
        not_committed=tuple(sorted(hidden)[:MOST_SHOWN]),
        dead=tuple(dead),
        exported=_exported(database, queue, key, commit),
        last_drain=next((one for one in newest if _covers(one.report.ranges + one.report.skipped, units)), None),
        possible_delivery=possible_delivery(busy, units, delivered),
    )


def _remembered(database: Database, queue: Queue, key: bytes) -> int | None:
    """Return the sequence of the newest entry of a key that the queue's state has."""
    try:
        with database.read() as work:
            state = find_state(work, queue.source)
        found, _ = latest_entry(database, state, key, LAST_SEQ)
    except (UnknownQueue, InvalidArgument, StateIncomplete, SegmentLost, SegmentUnavailable):
        return None  # there is none, or it cannot say
    return None if found < 0 else found


def _exported(database: Database, queue: Queue, key: bytes, commit: LastCommit | None) -> bool | None:
    """Tell whether the sink has acknowledged the last commit of a key, as a wait for its transaction would."""
    if commit is None or commit.seq is None:
        return None
    added = {queue.source_number: (hash_of(key),)}
    token = ExportToken(store_id=identity_of(database).store_id, seq=commit.seq, added=added)
    try:
        return is_exported(database, token, queue.id).is_exported
    except NotExported:
        return False


def last_commit(
    queued: Iterable[int], dead: Iterable[int], writer: int | None, remembered: int | None = None
) -> LastCommit | None:
    """Return the newest commit among its traces; pure.

    :param queued: sequences of committed entries.
    :param dead: sequences of dead letters.
    :param writer: the last transaction that wrote the conflict key; 0 if only bound transactions locked it.
    :param remembered: the sequence that the queue's state has.
    """
    traces = [LastCommit(writer, "conflict key")] if writer else []
    traces += [LastCommit(remembered, "state")] if remembered is not None else []
    traces += [LastCommit(seq, "dead letter") for seq in dead]
    traces += [LastCommit(seq, "entry") for seq in queued]
    # the last of equal ones: a pending entry says more than its conflict key
    known = max(reversed(traces), key=lambda trace: trace.seq or 0, default=None)
    return LastCommit(None, "conflict key") if known is None and writer == 0 else known


def possible_delivery(drains: Iterable[FinishedDrain], units: Sequence[Range], seq: int | None) -> FinishedDrain | None:
    """Return the newest drain that may have delivered a key; pure.

    :param drains: newest first.
    :param units: the key's unit in each layout of its queue.
    :param seq: the delivered sequence; None if it is not known.
    """
    for drain in drains:
        report = drain.report
        if not report.acknowledged or not _covers(report.ranges, units) or report.lowest_seq is None:
            continue
        if seq is None or report.lowest_seq <= seq <= (report.highest_seq or 0):
            return drain
    return None


def _covers(ranges: Iterable[Range], units: Sequence[Range]) -> bool:
    return any(
        part.layout == unit.layout and part.first < unit.end and part.end > unit.first
        for part in ranges
        for unit in units
    )


def finished_drains(
    work: Reading, queue_id: str | None = None, *, idle: bool = True, limit: int = 100
) -> list[FinishedDrain]:
    """Read the stored reports of a queue's drains, or of all queues', newest first.

    :param idle: whether to include drains that found nothing.
    """
    found = queries.reports.latest_reports(work, queue_id, idle=idle, limit=limit)
    return [FinishedDrain(finished_ms, DrainReport.from_dict(report)) for finished_ms, report in found]
