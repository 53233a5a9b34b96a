"""The records of a comparison that may differ, in a temporary database, so that memory is bounded.

Records that are the same on both sides do not get there. Only digests of documents are kept. SQLite deletes the file
when it is closed, or the process ends.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

from export_queue.core.sinks import StoredRecords
from export_queue.core.verify.judging import NO_LOADS, Loads, Version
from export_queue.core.verify.rendering import Refused
from export_queue.core.verify.rows import Rows
from export_queue.core.verify.shares import Page
from export_queue.core.verify.sides import Sides

CACHE_KIB = 64 << 10
PAGE = 1000
"""Records that are checked together."""
PACKED = 20_000
"""Candidates that are passed to another process together."""
_SCHEMA = """
CREATE TABLE expected (target INTEGER, id BLOB, rank INTEGER, digest BLOB, key BLOB, expires INTEGER);
CREATE TABLE found (target INTEGER, id BLOB, rank INTEGER, digest BLOB);
CREATE TABLE refused (key BLOB PRIMARY KEY, rank INTEGER) WITHOUT ROWID;
CREATE TABLE refused_record (target INTEGER, id BLOB, PRIMARY KEY (target, id)) WITHOUT ROWID;
CREATE TABLE candidate (
  number INTEGER PRIMARY KEY, target INTEGER, id BLOB, rank INTEGER, digest BLOB, key BLOB, expires INTEGER,
  last_rank INTEGER, last_digest BLOB, last_expected BLOB, last_newest INTEGER, UNIQUE (target, id));
CREATE TABLE difference (target INTEGER, id BLOB, key BLOB);
CREATE TABLE fresh (target INTEGER, id BLOB, rank INTEGER, digest BLOB, key BLOB, expires INTEGER);
CREATE TABLE waiting_key (kind TEXT, key BLOB, rank INTEGER, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE waiting_record (
  kind TEXT, target INTEGER, id BLOB, rank INTEGER, PRIMARY KEY (kind, target, id)) WITHOUT ROWID;
"""
_COMPARE = """
INSERT INTO candidate (target, id)
SELECT target, id FROM (
  SELECT 0 AS side, target, id, rank, ifnull(digest, x'') AS digest FROM expected
  UNION ALL SELECT 1, target, id, rank, ifnull(digest, x'') FROM found)
GROUP BY target, id
HAVING NOT (min(side) = 0 AND max(side) = 1 AND min(digest) = max(digest)
            AND (min(rank) = max(rank) OR NOT :ranked
                 OR (count(*) = 2 AND max(rank) >> 1 = :of_reader AND max(rank * side) = max(rank))
                 OR (count(*) = 2 AND max(rank) >> 1 = :of_source AND max(rank * side) = min(rank))))
   AND NOT (min(side) = 1 AND max(digest) = x'')
   AND NOT (max(side) = 0 AND max(digest) = x'' AND (NOT :ranked OR max(rank) >> 1 < :began))
"""
"""Records that are not the same on both sides. Tombstones of entries that the source has forgotten are not compared,
nor are deleted records that a sink without ranks lacks. Ranks of first loads agree as :class:`Loads` says."""
_DESCRIBE = """
UPDATE candidate SET rank = e.rank, digest = e.digest, key = e.key, expires = e.expires
FROM (SELECT target, id, max(rank) AS rank, digest, key, expires FROM {table}
      WHERE (target, id) IN (SELECT target, id FROM candidate) GROUP BY target, id) AS e
WHERE candidate.target = e.target AND candidate.id = e.id
"""
_REFUSED = "INSERT INTO candidate (target, id, key, rank) SELECT -1, key, key, rank FROM refused"
_NO_LONGER_REFUSED = """
DELETE FROM candidate WHERE target = -1 AND (key, rank) NOT IN (SELECT key, rank FROM refused)
"""
_IS_REFUSED = """
SELECT 1 FROM refused WHERE key = ? UNION ALL SELECT 1 FROM refused_record WHERE target = ? AND id = ?
"""
_REOPEN = """
INSERT INTO candidate (target, id, key) SELECT target, id, key FROM difference;
DELETE FROM difference;
"""
_REPAIRED_AS = "SELECT max(rank, ifnull(last_rank, -1)) >> 1 FROM candidate WHERE target = ? AND id = ? AND rank = ?"
_NOTE = """
UPDATE candidate SET last_rank = ?, last_digest = ?, last_expected = digest, last_newest = ? WHERE number = ?
"""
_PAGE = """
SELECT c.number, c.target, c.id, c.rank, c.digest, c.key, c.expires,
  c.last_rank, c.last_digest, c.last_expected, c.last_newest,
  max(ifnull((SELECT rank FROM waiting_key WHERE kind = 'queued' AND key = c.key), -2),
      ifnull((SELECT rank FROM waiting_record WHERE kind = 'queued' AND target = c.target AND id = c.id), -2)),
  max(ifnull((SELECT rank FROM waiting_key WHERE kind = 'dead' AND key = c.key), -2),
      ifnull((SELECT rank FROM waiting_record WHERE kind = 'dead' AND target = c.target AND id = c.id), -2))
FROM candidate AS c WHERE c.number > ? ORDER BY c.number LIMIT ?
"""
_WAITS_KEY = "INSERT INTO waiting_key VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET rank = max(rank, excluded.rank)"
_WAITS_RECORD = (
    "INSERT INTO waiting_record VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET rank = max(rank, excluded.rank)"
)
NO_TARGET = -1
"""The target of an entry that the exporter or the sink refuses: which record it names is not known."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record that may differ."""

    number: int
    target: int
    id: bytes
    key: bytes | None
    """The key of the entry that names the record; None if no entry does."""
    expected: Version | None
    expires: bool
    last: tuple[Version, bytes | None, int] | None
    """What the last check has found, the digest that was expected then, and an id that was drawn after it."""
    queued: int | None
    dead: int | None


class Spool:
    """The temporary database of one comparison."""

    def __init__(self) -> None:
        self._sql = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._sql.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{CACHE_KIB};")
        self._sql.executescript(_SCHEMA)
        self._sql.execute("BEGIN")
        self._sides = Sides()
        self.is_ranked = True
        """Whether ranks are compared; to be set before records are added."""
        self.targets: list[str] = []
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        self._sides.close()
        self._sql.close()

    def add_expected(
        self, records: StoredRecords, keys: Sequence[bytes], expires: Sequence[bool] | None = None
    ) -> None:
        """Add what the source expects.

        :param keys: the key of the entry that names each record.
        :param expires: whether each document has a time to live; None if none has.
        """
        self._sides.add(0, Rows.of(records, self._number, keys, expires), is_ranked=self.is_ranked)

    def add_found(self, records: StoredRecords) -> None:
        """Add what the sink has."""
        self._sides.add(1, Rows.of(records, self._number), is_ranked=self.is_ranked)

    def add_fresh(self, records: StoredRecords, keys: Sequence[bytes], expires: Sequence[bool] | None = None) -> None:
        """Add what a newer content expects."""
        self._insert("fresh", Rows.of(records, self._number, keys, expires))

    def add_refused(self, refused: Refused) -> None:
        """Add entries that the exporter or the sink refuses."""
        self._sql.executemany("INSERT OR REPLACE INTO refused VALUES (?, ?)", refused.keys)
        named = zip(map(self._number, refused.records.targets), refused.records.ids, strict=True)
        self._sql.executemany("INSERT OR IGNORE INTO refused_record VALUES (?, ?)", named)

    def add_waiting(self, kind: str, keys: Iterable[tuple[bytes, int]], records: StoredRecords) -> None:
        """Add entries that explain differences.

        :param kind: ``queued`` or ``dead``.
        :param keys: keys and ranks of the entries.
        :param records: the records that they name.
        """
        self._sql.executemany(_WAITS_KEY, ((kind, key, rank) for key, rank in keys))
        targets = map(self._number, records.targets)
        self._sql.executemany(
            _WAITS_RECORD, zip([kind] * len(records), targets, records.ids, records.ranks, strict=True)
        )

    def forget_waiting(self) -> None:
        self._sql.execute("DELETE FROM waiting_key")
        self._sql.execute("DELETE FROM waiting_record")

    def compare(self, *, copies: bool, loads: Loads = NO_LOADS) -> int:
        """Find the candidates, and return their number. What is the same is forgotten.

        :param copies: whether the id of a record is the key of its entry.
        """
        for rows in self._sides.unmatched(0):
            self._insert("expected", rows)
        for rows in self._sides.unmatched(1):
            self._insert("found", rows)
        self._sides.close()
        self._sql.execute(_COMPARE, {"ranked": self.is_ranked, **asdict(loads)})
        self._sql.execute(_DESCRIBE.format(table="expected"))
        self._sql.execute("DELETE FROM expected")
        self._sql.execute("DELETE FROM found")
        if copies:
            self._sql.execute("UPDATE candidate SET key = id WHERE key IS NULL")
        return self.take_refused()

    def take_refused(self) -> int:
        """Make candidates of the refused entries, and return the number of all candidates."""
        self._sql.execute(_REFUSED)
        return self.candidates()

    def add_page(self, page: Page) -> None:
        """Add a page that another process has made."""
        self._sides.add(page.side, page.rows.renumbered(self._numbers_of(page.names)), is_ranked=self.is_ranked)

    def packed_candidates(self) -> Iterator[bytes]:
        """Return the candidates for the spool of another process, see :meth:`take_candidates`."""
        found = self._sql.execute("SELECT target, id, rank, digest, key, expires FROM candidate")
        while rows := found.fetchmany(PACKED):
            yield marshal.dumps((self.targets, rows))

    def take_candidates(self, packed: bytes) -> None:
        """Add the candidates of another spool."""
        names, rows = marshal.loads(packed)
        numbers = self._numbers_of(names)
        self._sql.executemany(
            "INSERT INTO candidate (target, id, rank, digest, key, expires) VALUES (?, ?, ?, ?, ?, ?)",
            ((numbers[row[0]], *row[1:]) for row in rows),
        )

    def candidates(self) -> int:
        return int(self._sql.execute("SELECT count(*) FROM candidate").fetchone()[0])

    def refresh(self) -> None:
        """Take the expected versions of all candidates from the newer content."""
        self._sql.execute("UPDATE candidate SET rank = NULL, digest = NULL, expires = NULL WHERE target >= 0")
        self._sql.execute(_DESCRIBE.format(table="fresh"))
        self._sql.execute("DELETE FROM fresh")
        self._sql.execute(_NO_LONGER_REFUSED)

    def forget_refused(self) -> None:
        """Forget the refused entries before a newer content is read."""
        self._sql.execute("DELETE FROM refused")
        self._sql.execute("DELETE FROM refused_record")

    def ids_and_keys(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Return id and key of all candidates."""
        yield from self._sql.execute("SELECT id, key FROM candidate")

    def is_refused(self, one: Candidate) -> bool:
        """Return whether the latest entry of a record's key is refused, as far as the key is known."""
        return self._sql.execute(_IS_REFUSED, (one.key, one.target, one.id)).fetchone() is not None

    def pages(self) -> Iterator[list[Candidate]]:
        """Read the candidates. They may be resolved or noted meanwhile."""
        after = 0
        while rows := self._sql.execute(_PAGE, (after, PAGE)).fetchall():
            yield list(map(_candidate, rows))
            after = rows[-1][0]

    def resolve(self, candidates: Iterable[Candidate]) -> None:
        """Forget candidates that are decided."""
        self._sql.executemany("DELETE FROM candidate WHERE number = ?", ((one.number,) for one in candidates))

    def keep(self, one: Candidate) -> None:
        """Keep a difference that can be repaired."""
        self._sql.execute("INSERT INTO difference VALUES (?, ?, ?)", (one.target, one.id, one.key))

    def repairable(self) -> int:
        """Return the number of kept differences."""
        return int(self._sql.execute("SELECT count(*) FROM difference").fetchone()[0])

    def reopen(self) -> int:
        """Make candidates of the kept differences, instead of those that are left, and return their number."""
        self._sql.execute("DELETE FROM candidate")
        for statement in _REOPEN.split(";"):
            self._sql.execute(statement)
        return self.candidates()

    def unexpected(self) -> int:
        """Return the number of candidates that no entry names."""
        return int(self._sql.execute("SELECT count(*) FROM candidate WHERE rank IS NULL").fetchone()[0])

    def seqs_of_candidates(self, records: StoredRecords) -> list[int | None]:
        """Return for each expected record that is a candidate, and expected with the same rank, the sequence to write.

        This is its own sequence, or that of a first load that has delivered it, if the record was found with that one.

        :returns: None for other records.
        """
        rows = zip(map(self._number, records.targets), records.ids, records.ranks, strict=True)
        found = (self._sql.execute(_REPAIRED_AS, row).fetchone() for row in rows)
        return [None if row is None else int(row[0]) for row in found]

    def note(self, checked: Iterable[tuple[Candidate, Version]], newest: int) -> None:
        """Note what the check of undecided candidates has found."""
        self._sql.executemany(
            _NOTE,
            ((found.rank, found.digest, newest, one.number) for one, found in checked),
        )

    def target(self, number: int) -> str:
        return self.targets[number]

    def _insert(self, table: str, rows: Rows) -> None:
        columns: list[Iterable[Any]] = [rows.targets, rows.ids, rows.ranks, rows.digest_list()]
        if rows.keys is not None:
            columns += [rows.keys, rows.expires or repeat(False, len(rows.ids))]
        self._sql.executemany(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", zip(*columns, strict=True)
        )

    def _numbers_of(self, names: Sequence[str]) -> list[int]:
        return list(map(self._number, names))

    def _number(self, target: str) -> int:
        number = self._numbers.get(target)
        if number is None:
            number = self._numbers[target] = len(self.targets)
            self.targets.append(target)
        return number


def _candidate(row: tuple[Any, ...]) -> Candidate:
    number, target, record, rank, digest, key, expires, *last, queued, dead = row
    expected = None if rank is None else Version(rank, digest)
    last_rank, last_digest, last_expected, last_newest = last
    before = None if last_newest is None else (Version(last_rank, last_digest), last_expected, last_newest)
    return Candidate(
        number, target, record, key, expected, bool(expires), before, *(None if n == -2 else n for n in (queued, dead))
    )
