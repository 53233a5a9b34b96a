"""Snapshots, made of ids or of a server's own, and the rules of visibility; no I/O."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

from export_queue.core.errors import SnapshotTooOld


class _Bounded:
    """What both kinds of snapshot have: excluded ids, ascending, and the smallest id that is not visible."""

    excluded: tuple[int, ...]
    low: Any

    def excludes(self, version: int) -> bool:
        """Return whether an id is among the excluded ones, by a binary search that needs no set."""
        at = bisect_left(self.excluded, version)
        return at < len(self.excluded) and self.excluded[at] == version

    def require_above(self, horizon: int) -> None:
        """Raise :class:`SnapshotTooOld` if clean-up may have overtaken this snapshot.

        :param horizon: the horizon that a read or commit has found.
        """
        if self.low < horizon:
            raise SnapshotTooOld(f"snapshot reaches down to {self.low}, clean-up has reached {horizon}")


@dataclass(frozen=True)
class Snapshot(_Bounded):
    """All that was committed at one moment, and the reader's own writes. It may be sent to other processes.

    :param read_pointer: the newest id that it may see.
    :param excluded: ids up to the read pointer that were in progress or invalid, ascending.
    :param write_pointers: the reader's own, if anything is stored under them before the commit.
    """

    read_pointer: int
    excluded: tuple[int, ...]
    write_pointers: tuple[int, ...] = ()

    def is_visible(self, version: int) -> bool:
        """Return whether a version belongs to this snapshot (I1, I4)."""
        if version in self.write_pointers:
            return True
        return version <= self.read_pointer and version not in self.excluded_set

    def sees(self, version: int) -> bool:
        """Return whether another transaction's version belongs to this snapshot; for reads of thousands of versions."""
        return version <= self.read_pointer and not self.excludes(version)

    @cached_property
    def low(self) -> int:
        """The smallest id that this snapshot does not see."""
        return min((*self.excluded[:1], *self.write_pointers[:1], self.read_pointer + 1))

    @property
    def is_prefix(self) -> bool:
        """Whether it sees everything up to the read pointer, which SQL reads at half the cost."""
        return not (self.write_pointers or self.excluded)

    @cached_property
    def excluded_set(self) -> frozenset[int]:
        """The excluded ids as a set."""
        return frozenset(self.excluded)

    @cached_property
    def excluded_text(self) -> str:
        """The excluded ids, separated by commas; made once, since every read sends it."""
        return ",".join(map(str, self.excluded))

    @property
    def write_pointers_text(self) -> str:
        """The write pointers, separated by commas."""
        return ",".join(map(str, self.write_pointers))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. Ids are strings, since they exceed 2⁵³."""
        return {
            "read_pointer": str(self.read_pointer),
            "excluded": pack_ids(self.excluded),
            "write_pointers": [str(pointer) for pointer in self.write_pointers],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Snapshot:
        """Read the result of :meth:`to_json`."""
        return cls(
            int(value["read_pointer"]),
            unpack_ids(value["excluded"]),
            tuple(int(pointer) for pointer in value["write_pointers"]),
        )


@dataclass(frozen=True)
class ServerSnapshot(_Bounded):
    """A PostgreSQL server's own snapshot: all SQL transactions that had ended. It is only valid in that server.

    Source: PostgreSQL's ``pg_current_snapshot()``.

    :param xmax: the first number of a SQL transaction that had not begun.
    :param xip: the smaller numbers that were in progress.
    :param excluded: the ids of long transactions in progress, and invalid ids, ascending. The rows that are staged
        under them belong to SQL transactions that have ended.
    :param low: every smaller id had ended.
    :param origin: the life of the server; it ends when the server crashes, or another one takes its at.
    """

    xmax: int
    xip: tuple[int, ...]
    excluded: tuple[int, ...]
    low: int
    origin: str

    def require_origin(self, origin: str) -> None:
        """Check the life of the server to which a connection leads.

        :raises SnapshotTooOld: numbers of SQL transactions may have been reused since.
        """
        if origin != self.origin:
            raise SnapshotTooOld("since the snapshot was taken the server has crashed, or another one has come")


AnySnapshot: TypeAlias = Snapshot | ServerSnapshot


def pack_ids(ids: Iterable[int]) -> str:
    """Encode ascending ids as compressed differences. Ten thousand take 40 kB instead of 220."""
    differences, before = [], 0
    for number in ids:
        differences.append(str(number - before))
        before = number
    return b64encode(zlib.compress(" ".join(differences).encode())).decode() if differences else ""


def unpack_ids(text: str) -> tuple[int, ...]:
    """Decode the result of :func:`pack_ids`; raise ValueError for other text."""
    if not isinstance(text, str):
        raise TypeError(f"expected packed ids as text, found {type(text).__name__}")
    return tuple(accumulate(map(int, zlib.decompress(b64decode(text, validate=True)).split()))) if text else ()
