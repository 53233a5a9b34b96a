"""Whether a reader's sink has acknowledged everything that a transaction added, and waiting for it.

A drain removes an entry after the sink acknowledged it (I7). So a transaction is exported when nothing of it is left:
no row, no file that may hold one of its entries, and no dead letter. A compaction with ``coalesce="latest"`` drops an
entry in favour of a newer one of its key. The file that it writes, and a dead letter or a retried row that comes from
that file, count as entries of all transactions between the lowest sequence that was merged and their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.drain.token import ExportToken
from export_queue.core.errors import CommitOutcomeUnknown, NotExported, TransactionEnded, clock_of
from export_queue.core.locks import holders, holders_named
from export_queue.core.queue import (
    KEPT,
    LOSSES,
    Queue,
    Range,
    backlog,
    described_act,
    find_reader,
    hash_of,
    in_all_layouts,
    remedy,
    waiting_ranges,
)
from export_queue.core.store import Database, Reading, queries, removed_subscription
from export_queue.core.transactions import Snapshot, take_snapshot

_READS = 5
"""Maximum number of reads of a queue whose layout changes meanwhile. Each repetition needs another change."""

Left = queries.exports.Left
Start = queries.exports.Start


@dataclass(frozen=True, slots=True)
class Standing:
    """What a reader has acknowledged of a transaction."""

    is_exported: bool
    awaits: str = ""
    """What has to happen first, for people."""
    left: Left | None = None
    """Something that is left of it."""
    is_narrow: bool = True
    """Whether a look reads a few buckets only."""
    reader: int = 0
    """Number of the reader."""

    def is_still(self, work: Reading) -> bool:
        """Return whether what is left is still there, by one probe of a primary key; False if it must be searched."""
        return bool(self.reader and self.left and queries.exports.is_left(work, self.reader, self.left))


_EXPORTED = Standing(is_exported=True)


def is_exported(database: Database, token: ExportToken, reader_id: str, *, since: Standing | None = None) -> Standing:
    """Look once whether a reader's sink has acknowledged everything that a transaction added.

    After a yes, a compaction may lead to a no again until its file is drained.

    Cost: three statements, of which one reads the pending rows of the buckets of the transaction's keys, if it added at
    most 32, and the catalogue of the reader's pending files. While what an earlier look found is still there, it is one
    probe of a primary key. If the keys are not known, as of a long transaction, it
    reads the primary keys of the reader's pending rows up to the first one of the transaction: a wait reads them once,
    and once again at its end.

    :param token: the transaction.
    :param reader_id: a subscription, or a queue without subscriptions.
    :param since: the result of an earlier look, where this one continues.
    :raises NotExported: a part will not arrive: dead letters, discarded entries, a sink that lost data.
    :raises TransactionEnded: the transaction was aborted or rolled back.
    :raises CommitOutcomeUnknown: the store has forgotten whether it has committed.
    :raises UnknownQueue: the store has no such queue.
    :raises HasSubscriptions: the queue has subscriptions; the error names them.
    """
    with database.read() as work:
        if since is not None and since.is_still(work):
            return since
        reader = find_reader(work, reader_id)
    if token.is_empty or (token.added is not None and reader.source_number not in token.added):
        return _EXPORTED
    if token.request is not None and (awaits := _missing_commit(database, token)):
        return Standing(False, awaits)
    hashes = None if token.added is None else token.added[reader.source_number]
    search = _Search(database, reader, token, hashes)
    if token.cut is not None:
        found = search.find_before(token.cut)
    else:
        found = search.find(token.seq, after=None if since is None or hashes else since.left)
    if not found.is_exported:
        return found
    with database.read() as work:
        lost = queries.acts.since(work, reader.id, LOSSES, token.seq)
    return search.find_in_load(lost) or found


def _missing_commit(database: Database, token: ExportToken) -> str:
    """Describe the commit that is missing; return nothing if the transaction has committed.

    :raises TransactionEnded: it never will.
    """
    name = token.name
    with database.read() as work:
        if queries.exports.committed_as(work, token.request) is not None:
            return ""
        is_over = queries.exports.is_refused(work, token.request)
    snapshot = take_snapshot(database)
    with database.read() as work:
        if queries.exports.committed_as(work, token.request) is not None:
            return ""
        is_over = is_over or token.seq in queries.registrations.invalid_ids(work)
        in_progress = token.seq > snapshot.read_pointer or snapshot.excludes(token.seq)
        if in_progress and not is_over:
            whose = "its user's SQL transaction has not" if token.is_bound else "it has not"
            return f"the commit of {name}: {whose} committed yet"
        assert token.request is not None
        if not is_over and queries.outcomes.may_be_forgotten(work, token.request):
            raise CommitOutcomeUnknown(
                f"{name}: the store does not know any more whether it has committed",
                hint="clean-up forgets outcomes after a day; `export-queue maintain --keep-outcomes` says when",
            )
    raise TransactionEnded(f"{name} has ended without a commit, and has added nothing", hint="run it again")


@dataclass(slots=True)
class _Search:
    """The search for what a reader has not acknowledged."""

    database: Database
    reader: Queue
    token: ExportToken
    hashes: Sequence[int] | None
    """Hashes of the keys that the transaction added; None if they are not known."""

    def find(self, seq: int, *, least: int | None = None, after: Left | None = None) -> Standing:
        """Find something that is left of a transaction.

        :param least: entries with sequences from here on count, too.
        :param after: what an earlier search found; rows before it need not be searched again.
        :raises NotExported: there is a dead letter.
        """
        start = (after.layout, after.bucket, b"") if after is not None and after.kind == "row" else (0, 0, b"")
        letters, left = self._read((seq if least is None else least, seq), Start(row=start))
        if letters:
            raise self._dead(letters[0])
        if not left and start > (0, 0, b""):  # a dead letter may have been retried before that position
            return self.find(seq, least=least)
        if not left:
            return _EXPORTED
        what = "an entry in a row" if left[0].kind == "row" else "a file of bulk entries"
        awaits = f"a drain of {self.reader.id}: {what} of unit {self.unit_of(left[0])} is pending"
        return Standing(False, awaits, left[0], is_narrow=self.hashes is not None, reader=self.reader.number)

    def _read(self, seqs: tuple[int, int], start: Start) -> tuple[list[Left], list[Left]]:
        """Find dead letters, and other things that are left."""
        for _ in range(_READS):
            layout, found, following = self._read_page(seqs, start)
            is_whole = following is None or bool(found)
            if not is_whole:  # a letter may be retried between two pages: then the row may be in neither
                with self.database.read() as work:
                    retries = queries.acts.count_retries(work, self.reader.id)
                while following is not None and not found and layout == self.reader.layout:
                    layout, found, following = self._read_page(seqs, following)
                with self.database.read() as work:
                    is_whole = bool(found) or retries == queries.acts.count_retries(work, self.reader.id)
            if is_whole and layout == self.reader.layout:
                break
            with self.database.read() as work:
                self.reader = self._again(work)
        return [one for one in found if one.kind == "dead letter"], [one for one in found if one.kind != "dead letter"]

    def _read_page(self, seqs: tuple[int, int], start: Start) -> tuple[int | None, list[Left], Start | None]:
        """Read a page, and leave out what concerns other keys."""
        # Rows of one transaction all concern its token. Those of a load are of other keys, too.
        rows = 1 if self.hashes is None or seqs == (self.token.seq, self.token.seq) else queries.exports.PAGE
        with self.database.read() as work:
            within, number = self._buckets(work), self.reader.number
            layout, found, following = queries.exports.left_of(
                work, number, seqs, within=within, start=start, rows=rows
            )
        return layout, [one for one in found if one.kind == "file" or self._concerns(one.key)], following

    def _again(self, work: Reading) -> Queue:
        reader = find_reader(work, self.reader.id)
        if reader.number != self.reader.number:
            raise removed_subscription(f"subscription {self.reader.id!r}")
        return reader

    def _buckets(self, work: Reading) -> Mapping[int, set[int]] | None:
        """Find the buckets of the keys in all layouts, since retries and fall-backs open closed ones again."""
        if self.hashes is None:
            return None
        layouts = in_all_layouts(work, self.reader).layouts()
        return {layout.number: {one % layout.buckets for one in self.hashes} for layout in layouts}

    def _concerns(self, key: bytes) -> bool:
        return self.hashes is None or hash_of(key) in self.hashes

    def unit_of(self, left: Left) -> Range:
        """Return the unit in which something is left."""
        with self.database.read() as work:
            layouts = {one.number: one for one in in_all_layouts(work, self.reader).layouts()}
        return layouts[left.layout].unit_of(left.bucket)

    def find_before(self, cut: Snapshot) -> Standing:
        """Find something that is left of everything that a snapshot sees.

        :raises NotExported: there is a dead letter.
        """
        for _ in range(_READS):
            with self.database.read() as work:
                letter = queries.exports.first_letter(work, self.reader.number, cut)
                waiting = waiting_ranges(work, self.reader, cut)
                # Again: a letter may have been retried, and a row may have become one, between the two reads.
                letter = letter or queries.exports.first_letter(work, self.reader.number, cut)
                before, self.reader = self.reader, self._again(work)
            if before.layouts() == self.reader.layouts():
                break
        if letter is not None:
            raise self._dead(letter)
        if waiting:
            left = Left("row", waiting[0].layout, waiting[0].first)
            return Standing(False, f"a drain of {self.reader.id}: unit {waiting[0]} has pending entries", left)
        return _EXPORTED

    def _dead(self, letter: Left) -> NotExported:
        with self.database.read() as work:
            error_class, reason, drain_id = queries.exports.reason_of(work, self.reader.number, letter)
        is_own = self.token.cut is not None or letter.seq == self.token.seq
        what = "an entry of it" if is_own else "a newer entry that may stand for one of it"
        said = f": {error_class}: {reason} (drain {drain_id})" if error_class else ""
        return NotExported(
            f"{self.token.name}: {what} is a dead letter of {self.reader.id}, key {letter.key[:60]!r}{said}",
            hint=f"mend the exporter, the sink or the data, then retry it: export-queue dead retry {self.reader.id}",
        )

    def find_in_load(self, lost: Sequence[Mapping[str, Any]]) -> Standing | None:
        """Find out whether the sink has what the reader itself does not deliver; None if it has.

        A subscription that began after the transaction, and one whose sink lost data since, gets it by a first load.

        :param lost: the acts since the transaction after which the sink lacks something.
        """
        reader, seq = self.reader, self.token.seq
        discarded = [act for act in lost if _has_discarded(act, 0 if self.token.cut is not None else seq, seq)]
        self._refuse_losses(discarded, "an entry of it")
        emptied = [act for act in lost if act["act"] in KEPT or act in discarded]
        emptied = [act for act in emptied if act["cleared_by"] in (None, "first load")]
        is_younger = reader.first_load is not None and seq < reader.number
        is_from_load = self.token.cut is not None and reader.first_load in ("missing", "made")
        if not emptied and not is_younger and not is_from_load:
            return None
        if reader.parent is None:
            raise self._not_exported(described_act(emptied[-1]))
        if reader.first_load == "missing":
            return Standing(False, f"the first load of {reader.id}, which began after the transaction or lost its data")
        if reader.first_load == "waived":
            if not is_younger:
                return None
            raise self._not_exported("the subscription began after the transaction, and needs no first load")
        with self.database.read() as work:
            load = queries.exports.first_load_seq(work, reader.number)
        if load is None or load == seq:
            return None
        # Shared entries keep their sequences: one may stand for the transaction's, and be a dead letter.
        found = self.find(load, least=min(seq + 1, load))
        if not found.is_exported:
            return found
        with self.database.read() as work:  # after the search, which misses what is discarded meanwhile
            later = queries.acts.since(work, reader.id, LOSSES, max(load, seq))
        self._refuse_losses(
            [act for act in later if _has_discarded(act, min(seq + 1, load), load)], "an entry of its first load"
        )
        return None

    def count(self, work: Reading) -> str:
        """Describe how much is left, and since when."""
        if self.token.cut is not None:
            units = backlog(work, self.reader, self.token.cut)
            oldest = min((unit.oldest_seq for unit in units), default=self.token.seq)
            return f"pending entries: {sum(unit.entries for unit in units)}, the oldest of {clock_of(oldest)}"
        number, seq = self.reader.number, self.token.seq
        rows, files = queries.exports.count_left(work, number, seq, within=self._buckets(work))
        in_files = f"; pending files that may hold some of it: {files}" if files else ""
        return f"pending entries in rows: {rows}{in_files}; committed at {clock_of(seq)}"

    def _refuse_losses(self, discarded: Sequence[Mapping[str, Any]], what: str) -> None:
        """Refuse the answer if an act has discarded entries, and neither a first load nor a promise made up for it."""
        for act in discarded:
            if act["cleared_ms"] is None:
                raise self._not_exported(f"{what} may be among these: {described_act(act)}")

    def _not_exported(self, why: str) -> NotExported:
        reader = self.reader.id
        return NotExported(f"{self.token.name}: {reader} lacks it: {why}", hint=remedy(reader))


def _has_discarded(act: Mapping[str, Any], first: int, last: int) -> bool:
    """Return whether an act has discarded entries between two sequences, both included."""
    return any(low <= last and first <= high for low, high in json.loads(act["seqs"] or "[]"))


def explained(database: Database, token: ExportToken, reader_id: str, standing: Standing) -> tuple[str, str]:
    """Describe what is still left: how much, where, since when, and who works there; and a hint."""
    if standing.left is None:
        return standing.awaits, ""
    with database.read() as work:
        reader = find_reader(work, reader_id)
        hashes = None if token.added is None else token.added.get(reader.source_number)
        search = _Search(database, reader, token, hashes)
        text = search.count(work)
        unit = search.unit_of(standing.left)
        units = [unit] if unit.layout in {one.number for one in reader.layouts()} else []
        held = holders_named(work, reader, units) if holders(work, reader, units) else ""
    text += f"; the first in unit {unit}, " + (f"which is held: {held}" if held else "where no drain works")
    return text, f"drain it, or see why its drain does not: export-queue drain {reader.id} {reader.sink or 'SINK'}"
