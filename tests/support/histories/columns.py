"""A history taken in, column by column, so that a million transactions fit into memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tests.support.histories.anomalies import Anomaly, AnomalyKind
from tests.support.histories.history import Append, HistoryTransaction, ReadList, Write

NOBODY = -1
"""Instead of a transaction."""
UNTOLD = -1
"""Instead of a version."""


class _Key(NamedTuple):
    """The versions of one key: each value has a number that no value of another key has."""

    name: str
    is_list: bool
    root: int
    """The version before all writes."""
    versions: dict[int, int]


class Columns:
    """A history: each column is an attribute."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reported: Counter[AnomalyKind] = Counter()
        self.anomalies: list[Anomaly] = []
        # one element a transaction
        self.session: list[str] = []
        self.status: list[Literal["ok", "aborted", "unknown"]] = []
        self.id, self.begin, self.end = array("q"), array("q"), array("q")
        self.previous = array("q")  # the last one of its session that was acknowledged
        self._sessions: dict[str, int] = {}
        # one a version
        self.keys: list[_Key] = []
        self._key_numbers: dict[str, int] = {}
        self.key, self.value = array("q"), array("q")
        self.writer, self.reader = array("q"), array("q")  # who wrote it, and who was first to read it
        self.before = array("q")  # the version before it, as reads of lists tell
        self.base = array("q")  # the version before it, as its writer saw it
        self.is_last = array("b")  # whether its writer wrote no other one of the key after it
        # one a read
        self.read_by, self.read = array("q"), array("q")

    def report(self, kind: AnomalyKind, transactions: Sequence[int], *lines: str) -> None:
        """Keep an anomaly, unless there are many of its kind."""
        self.reported[kind] += 1
        if self.reported[kind] <= self.limit:
            involved = tuple(dict.fromkeys(i for i in transactions if i != NOBODY))
            self.anomalies.append(Anomaly(kind, involved, (*lines, *map(self.describe, involved))))

    def describe(self, i: int) -> str:
        """Say which transaction this is."""
        number = f", id {self.id[i]}" if self.id[i] >= 0 else ""
        times = [f"{t / 1e9:.6f} s" if t >= 0 else "?" for t in (self.begin[i], self.end[i])]
        return f"T{i}: session {self.session[i]}, {self.status[i]}{number}, from {times[0]} to {times[1]}"

    def name_and_value(self, version: int) -> tuple[str, str]:
        """Say which key a version is of, and which value."""
        key = self.keys[self.key[version]] if version >= 0 else None
        if key is None or version == key.root:
            return repr(key.name) if key else "", "nothing"
        return repr(key.name), str(self.value[version])

    def show(self, version: int) -> str:
        """Say which version this is."""
        name, value = self.name_and_value(version)
        return f"{value} of {name}"

    def add(self, transaction: HistoryTransaction) -> None:
        """Take a transaction in."""
        i, begin, end = len(self.session), transaction.begin, transaction.end
        previous = self._sessions.get(transaction.session, NOBODY)
        if begin is not None and ((end or begin) < begin or (previous != NOBODY and self.end[previous] > begin)):
            raise ValueError(f"expected that each transaction of a session ends before the next, found {transaction}")
        self.session.append(transaction.session)
        self.status.append(transaction.status)
        for column, number in ((self.id, transaction.id), (self.begin, begin), (self.end, end)):
            column.append(-1 if number is None else number)
        self.previous.append(previous)
        if transaction.status != "unknown":
            self._sessions[transaction.session] = i
        known: dict[int, tuple[int, ...]] = {}  # by key, what the transaction must read from now on
        blind: dict[int, list[int]] = {}  # versions appended without having read the key
        newest: dict[int, int] = {}  # the newest version that it read or wrote
        for operation in transaction.operations:
            is_list = isinstance(operation, (ReadList, Append))
            k = self._key_number(operation.key, is_list)
            if isinstance(operation, (Append, Write)):
                n = self._write(i, k, operation.value, newest.get(k, UNTOLD))
                newest[k] = n
                if k in known or not is_list:
                    known[k] = (*(known[k] if is_list else ()), operation.value)
                else:
                    blind.setdefault(k, []).append(n)
                continue
            found = operation.values if isinstance(operation, ReadList) else _as_list(operation.value)
            own = blind.pop(k, [])
            written = tuple(self.value[n] for n in own)
            expected = known.setdefault(k, found)
            if found != expected or found[len(found) - len(own) :] != written:
                text = _show(expected if found != expected else (..., *written))
                self.report(
                    AnomalyKind.OWN_READ, [i], f"T{i} read {operation.key!r}: expected {text}, found {_show(found)}"
                )
            elif own:
                self.base[own[0]] = self._take_read(i, k, found[: -len(own)])
            elif k not in newest:
                newest[k] = self._take_read(i, k, found)

    def _key_number(self, name: str, is_list: bool) -> int:
        number = self._key_numbers.setdefault(name, len(self.keys))
        if number == len(self.keys):
            self.keys.append(_Key(name, is_list, len(self.value), {}))
            self._add_version(number, 0)
        elif self.keys[number].is_list is not is_list:
            raise ValueError(f"expected a list or a register, found both under the key {name!r}")
        return number

    def _add_version(self, key: int, value: int) -> int:
        for column, number in ((self.key, key), (self.value, value), (self.writer, NOBODY), (self.reader, NOBODY)):
            column.append(number)
        self.before.append(UNTOLD)
        self.base.append(UNTOLD)
        self.is_last.append(True)
        return len(self.value) - 1

    def _version(self, key: int, value: int) -> int:
        versions = self.keys[key].versions
        n = versions.get(value)
        if n is None:
            n = versions[value] = self._add_version(key, value)
        return n

    def _write(self, i: int, key: int, value: int, base: int) -> int:
        n = self._version(key, value)
        if self.writer[n] != NOBODY:
            raise ValueError(f"expected that values are written once, found T{self.writer[n]} and T{i}: {self.show(n)}")
        self.writer[n] = i
        self.base[n] = base
        if base != UNTOLD and self.writer[base] == i:
            self.is_last[base] = False
        return n

    def _take_read(self, i: int, key: int, values: tuple[int, ...]) -> int:
        """Note what a list tells about the order of its values; returns its last version."""
        n, versions = self.keys[key].root, self.keys[key].versions
        if len(set(values)) < len(values):
            name = self.keys[key].name
            self.report(AnomalyKind.REPEATED_VALUE, [i], f"T{i} read {name!r}: found {_show(values)}")
            return UNTOLD
        for value in values:
            before, n = n, versions.get(value, UNTOLD)
            if n == UNTOLD:
                n = self._version(key, value)
            if self.reader[n] == NOBODY:
                self.reader[n], self.before[n] = i, before
            elif self.before[n] != before:
                first = self.reader[n]
                self.report(
                    AnomalyKind.TORN_LIST,
                    [first, i],
                    f"T{first} read {self.show(n)} behind {self.show(self.before[n])}",
                    f"T{i} read it behind {self.show(before)}",
                )
        self.read_by.append(i)
        self.read.append(n)
        return n


def _as_list(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)


def _show(values: Sequence[object]) -> str:
    text = ", ".join("…" if value is ... else str(value) for value in values[-6:])
    return f"[{'…, ' if len(values) > 6 else ''}{text}]"
