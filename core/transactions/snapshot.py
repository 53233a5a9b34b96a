"""Snapshots and transactions as values, and the one rule of visibility; no I/O."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Literal

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import View


class Level(StrEnum):
    """What a transaction sees of its own writes.

    Source: Tephra's visibility levels.
    """

    SNAPSHOT = "snapshot"
    """The newest of its own versions."""
    SNAPSHOT_EXCLUDE_CURRENT = "snapshot_exclude_current"
    """Its own writes up to the last checkpoint."""
    SNAPSHOT_ALL = "snapshot_all"
    """All its own versions."""


def pack_ids(ids: Iterable[int]) -> str:
    """Write ascending ids as short text: their differences, compressed. Ten thousand take 40 kB, not 220."""
    differences, before = [], 0
    for number in ids:
        differences.append(str(number - before))
        before = number
    return b64encode(zlib.compress(" ".join(differences).encode())).decode() if differences else ""


def unpack_ids(text: str) -> tuple[int, ...]:
    """Read what :func:`pack_ids` gave.

    :raises ValueError: it is something else.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected packed ids as text, found {type(text).__name__}")
    return tuple(accumulate(map(int, zlib.decompress(b64decode(text, validate=True)).split()))) if text else ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was committed at one moment; a value that may travel to other processes."""

    read_pointer: int
    excluded: tuple[int, ...]
    """Ids at or below ``read_pointer`` that were in progress or invalid, ascending."""

    def is_visible(self, version: int) -> bool:
        """Tell whether a version was committed at this moment."""
        return version <= self.read_pointer and version not in self.excluded

    @property
    def view(self) -> View:
        """The arguments of a read."""
        return View(self.read_pointer, self.excluded)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; ids are strings, since they exceed 2⁵³."""
        return {"read_pointer": str(self.read_pointer), "excluded": pack_ids(self.excluded)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Snapshot:
        """Read what :meth:`to_json` gave."""
        return cls(int(value["read_pointer"]), unpack_ids(value["excluded"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One snapshot and the right to write under one id; a value that may travel to other processes.

    Source: Tephra's transaction handle; the visibility rule is that of Cask's 2014 design.
    """

    id: int
    """Start timestamp and first write pointer: milliseconds since the epoch × 10⁶, or one above the last."""
    read_pointer: int
    excluded: frozenset[int]
    """Ids at or below ``read_pointer`` that were in progress or invalid at the start."""
    write_pointers: tuple[int, ...]
    """Write pointers of this transaction, oldest first; more than one after checkpoints."""
    kind: Literal["read", "short", "long", "bound"]
    deadline_ms: int
    """By the store's clock; a later commit is refused."""
    request: str
    """Under which the outcome can be asked."""
    level: Level = Level.SNAPSHOT

    def is_visible(self, version: int) -> bool:
        """Tell whether a version belongs to this snapshot (I1, I4)."""
        if version in self.write_pointers:
            return self.level is not Level.SNAPSHOT_EXCLUDE_CURRENT or version != self.write_pointers[-1]
        return version <= self.read_pointer and version not in self.excluded

    @property
    def view(self) -> View:
        """The arguments of a read."""
        is_current_hidden = self.level is Level.SNAPSHOT_EXCLUDE_CURRENT
        write_pointers = self.write_pointers[:-1] if is_current_hidden else self.write_pointers
        return View(self.read_pointer, tuple(sorted(self.excluded)), write_pointers if self.kind == "long" else ())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; ids are strings, since they exceed 2⁵³."""
        return {
            "id": str(self.id),
            "read_pointer": str(self.read_pointer),
            "excluded": pack_ids(sorted(self.excluded)),
            "write_pointers": [str(i) for i in self.write_pointers],
            "kind": self.kind,
            "deadline_ms": self.deadline_ms,
            "request": self.request,
            "level": self.level.value,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Transaction:
        """Read what :meth:`to_json` gave.

        :raises InvalidArgument: a field is missing or no number.
        """
        try:
            return cls(
                id=int(value["id"]),
                read_pointer=int(value["read_pointer"]),
                excluded=frozenset(unpack_ids(value["excluded"])),
                write_pointers=tuple(int(i) for i in value["write_pointers"]),
                kind=value["kind"],
                deadline_ms=int(value["deadline_ms"]),
                request=value["request"],
                level=Level(value["level"]),
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise InvalidArgument(f"expected a transaction as to_json() gives it, found {error!r}") from error
