"""Dead letters: entries that were set aside because the exporter or the sink rejected them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from export_queue.core.errors import CodecError, InvalidArgument
from export_queue.core.queue.buckets import FIRST_LAYOUT
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.read import Position
from export_queue.core.store import Reading, Work, queries


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry that was set aside. It keeps its sequence."""

    position: Position
    value: bytes | None
    """None if the entry has no value, or if values were not requested."""
    error_class: str
    reason: str
    """The message of the exporter or sink."""
    drain_id: str
    """Id of the drain that set it aside."""
    value_bytes: int | None = None
    """Size of the value; None if the entry has no value."""
    dead_since_ms: int = 0
    """When it was set aside."""
    key: Any = None
    """The key as it was added, or its bytes if the codec fails; None before the letter is stored."""
    layout: int = FIRST_LAYOUT
    """The layout of its queue to which its bucket belongs."""

    @property
    def id(self) -> tuple[int, bytes]:
        """What names it among the letters of its queue: seq and key."""
        return self.position.seq, self.position.key

    def __repr__(self) -> str:  # values are shown only on request
        return f"DeadLetter({self.position.key!r}, seq={self.position.seq}, {self.error_class}: {self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selects the dead letters of a queue that match all given criteria.

    :param key: the entry's key as it was added; or bytes, as they are stored.
    :param seq: the entry's sequence.
    :param error_class: class of the error with which the entry was rejected.
    :param drain_id: id of the drain that set the entry aside.
    :param until_ms: the entry was not set aside after this time, in milliseconds of the store's clock.
    """

    key: Any = None
    seq: int | None = None
    error_class: str | None = None
    drain_id: str | None = None
    until_ms: int | None = None

    def columns(self, queue: Queue) -> dict[str, Any]:
        """Return the given criteria by name, with the key as a queue stores it.

        :raises EntryError: the key has another type than the queue's keys.
        """
        given = self._given()
        return given | {"key": self._stored_key(queue)} if "key" in given else given

    def shown(self) -> dict[str, Any]:
        """Return the given criteria for JSON, readable; a seq is text, since it exceeds 2⁵³."""
        shown = self._given()
        if isinstance(self.key, bytes):
            shown["key"] = self.key.decode("utf-8", "backslashreplace")
        elif self.key is not None:
            shown["key"] = str(self.key)
        if self.seq is not None:
            shown["seq"] = str(self.seq)
        return shown

    def _given(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def _stored_key(self, queue: Queue) -> bytes:
        if isinstance(self.key, bytes):
            return self.key
        if isinstance(self.key, str) and queue.key in ("bytes", "int"):
            return self.key.encode()  # from a command line: the digits of a number are its bytes
        return queue.encode_key(self.key)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The record of a retry or drop of dead letters, or of discarded data; it stays in the store."""

    act: str
    """``retry``, ``drop``, ``unsubscribe`` with pending entries, or ``give up`` of a lost file with bulk entries."""
    who: str
    letters: int
    selection: str
    """The filter as JSON; for ``unsubscribe`` the subscription and the number of its pending entries."""
    at_ms: int


ALL_DEAD_LETTERS = DeadLetterFilter()
_ACTS = ("retry", "drop")


def dead_letter(work: Work, queue: Queue, letters: Sequence[DeadLetter]) -> int:
    """Store entries as dead letters, in the SQL transaction that removes them from the queue (I6).

    :returns: number of those that were not stored before.
    """
    return queries.dead_letters.insert_dead(
        work,
        [
            {
                "queue_number": queue.number,
                "layout": queue.layout,
                "bucket": letter.position.bucket,
                "key": letter.position.key,
                "seq": letter.position.seq,
                "value": letter.value,
                "error_class": letter.error_class,
                "reason": letter.reason,
                "drain_id": letter.drain_id,
            }
            for letter in letters
        ],
        coalesces=queue.coalesce is not None,
    )


def list_dead_letters(
    work: Reading,
    queue: Queue,
    which: DeadLetterFilter = ALL_DEAD_LETTERS,
    *,
    after: tuple[int, bytes] | None = None,
    limit: int = 100,
    values: bool = False,
) -> list[DeadLetter]:
    """Read dead letters, oldest entries first.

    :param after: ``position`` of the last letter of the previous page.
    :param limit: maximum number of letters.
    :param values: whether to read the entries' values, too.
    """
    check_limit(limit)
    return [
        DeadLetter(
            Position(row["bucket"], bytes(row["key"]), row["seq"]),
            row.get("value"),
            row["error_class"],
            row["reason"],
            row["drain_id"],
            row["value_bytes"],
            row["dead_since_ms"],
            _key(queue, bytes(row["key"])),
            row["layout"],
        )
        for row in queries.dead_letters.select_dead(
            work, queue.number, which.columns(queue), after=after, limit=limit, values=values
        )
    ]


def _key(queue: Queue, key: bytes) -> Any:
    try:
        return queue.decode_key(key)
    except CodecError:  # such letters must be visible, too
        return key


def count_dead_letters(
    work: Reading, queue: Queue, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, most: int | None = None
) -> int:
    return queries.dead_letters.count_dead(work, queue.number, which.columns(queue), most=most)


def requeue(work: Work, queue: Queue, positions: Sequence[Position], *, who: str, which: DeadLetterFilter) -> int:
    """Put dead letters back into the queue with their original seqs, and record it.

    The caller holds the units of the positions. The drain of another holder may already have taken its snapshot, and
    would remove the entries although no sink has seen them (I7).

    :param queue: the queue in the layout of the letters; a closed layout is opened again.
    :param who: name for the audit.
    :param which: the selection, for the audit.
    :returns: number of letters put back; letters that no longer exist are ignored.
    """
    queries.layouts.open_again(work, queue.source_number, queue.layout)
    moved = queries.dead_letters.requeue_dead(
        work, queue.number, [(position.seq, position.key) for position in positions]
    )
    _record(work, queue, "retry", who, moved, which)
    return moved


def count_acts(work: Reading, queue: Queue) -> int:
    """Count the retries and drops of a reader's dead letters."""
    return queries.acts.count(work, queue.id, _ACTS)


def refuse_newer_act(work: Reading, queue: Queue, seen: int | None) -> None:
    """Refuse a request if letters were retried or dropped after it was made; call it after the letters are listed.

    Of two requests that overlap, the second either finds the act of the first here, or has listed the same letters.

    :param seen: number of acts that the request knows; None allows all. Ids would not do: of two acts at the same time,
        the one with the lower id may commit later.
    :raises InvalidArgument: there are others.
    """
    if seen is not None and count_acts(work, queue) != seen:
        raise InvalidArgument(
            f"dead letters of {queue.id} were retried or dropped after this request was made; it changes nothing",
            hint="see which letters are left, then make the request again",
        )


def drop_dead_letters(
    work: Work, queue: Queue, which: DeadLetterFilter, *, who: str, limit: int, seen: int | None = None
) -> int:
    """Delete dead letters permanently, oldest entries first, and record it in the same SQL transaction.

    :param seen: see :func:`refuse_newer_act`.
    """
    if not who:
        raise InvalidArgument("who: expected a name for the audit, found nothing")
    letters = list_dead_letters(work, queue, which, limit=limit)
    refuse_newer_act(work, queue, seen)
    named = [letter.id for letter in letters]
    seqs = queries.dead_letters.spreads(work, queue.number, named)
    dropped = queries.dead_letters.delete_dead(work, queue.number, named)
    _record(work, queue, "drop", who, dropped, which, seqs=seqs)
    return dropped


def dead_letter_audit(work: Reading, queue: Queue, *, limit: int = 100) -> list[AuditRecord]:
    """Read the acts on a reader's dead letters, newest first; for a queue, also removals of subscriptions."""
    return [
        AuditRecord(row["act"], row["who"], row["letters"], row["selection"], row["at_ms"])
        for row in queries.acts.select(work, queue.id, limit=limit)
    ]


def check_limit(limit: int) -> None:
    """Refuse a limit that is not a whole number from 1."""
    if type(limit) is not int or limit < 1:
        raise InvalidArgument(f"limit: expected a whole number from 1, found {limit!r}")


def _record(
    work: Work,
    queue: Queue,
    act: str,
    who: str,
    letters: int,
    which: DeadLetterFilter,
    *,
    seqs: Sequence[tuple[int, int]] | None = None,
) -> None:
    if letters:
        shown = which.shown()
        queries.acts.record(work, queue_id=queue.id, act=act, who=who, letters=letters, selection=shown, seqs=seqs)
