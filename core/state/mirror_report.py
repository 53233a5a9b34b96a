"""Options and reports of mirror loads."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from export_queue.core.errors import InvalidArgument, MirrorRefused
from export_queue.core.queue import Queue

KINDS = ("new", "changed", "deleted")
SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions:
    """How a data set is compared with a state.

    :raises InvalidArgument: an option is out of bounds.
    """

    key: str | tuple[str, ...] | None = None
    """Columns that make up the key. None: the data has pairs of key and value, or columns of these names."""
    value: str | tuple[str, ...] | None = None
    """One column that is the value, or several that become a JSON object. None: all columns."""
    scope: str | bytes | None = None
    """Beginning of the keys that the data set has all of. Other keys of the state are left alone."""
    max_deletes: float = 0.2
    """The largest part of the records in the scope that may be deleted, from 0.0 to 1.0; or a number of records, if it
    is a whole number (``1`` is one record, ``1.0`` all)."""
    dry_run: bool = False
    """Only report the difference."""
    settle_timeout: float = 60.0
    """Seconds to wait for older transactions to end."""

    def __post_init__(self) -> None:
        for what, columns in (("key", self.key), ("value", self.value)):
            if columns is not None and not columns:
                raise InvalidArgument(f"{what}: expected the name of a column, or several, found none")
            if columns is not None and not all(isinstance(one, str) for one in columns):
                raise InvalidArgument(f"{what}: expected the name of a column, or several, found {columns!r}")
        if not isinstance(self.dry_run, bool):
            raise InvalidArgument(f"dry_run: expected True or False, found {self.dry_run!r}")
        most = self.max_deletes
        if isinstance(most, bool) or not isinstance(most, int | float) or not most >= 0 or math.isnan(most):
            raise InvalidArgument(f"max_deletes: expected a part from 0 to 1 or a number of records, found {most!r}")
        if isinstance(most, float) and most > 1:
            raise InvalidArgument(f"max_deletes: expected a part from 0 to 1, or a whole number, found {most!r}")

    def allowed(self, records: int) -> int:
        """Return how many of a number of records may be deleted."""
        most = self.max_deletes
        return most if isinstance(most, int) else math.floor(Fraction(str(float(most))) * records)  # 0.29 of 100 is 29


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """What a mirror load has found and added."""

    queue: str
    unchanged: int
    new: int
    changed: int
    deleted: int
    dry_run: bool
    samples: dict[str, list[Any]] = field(default_factory=dict)
    """Some keys that are new, changed or deleted."""

    @property
    def added(self) -> int:
        """How many entries make up the difference."""
        return self.new + self.changed + self.deleted

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        samples = {kind: [k.hex() if isinstance(k, bytes) else k for k in keys] for kind, keys in self.samples.items()}
        return {**asdict(self), "samples": samples}

    def line(self) -> str:
        """Summarise the load in one line."""
        would = "would add" if self.dry_run else "added"
        return (
            f"{self.queue}: {would} {self.added} entries: {self.new} new, {self.changed} changed, "
            f"{self.deleted} deleted; {self.unchanged} unchanged"
        )


@dataclass(slots=True)
class Found:
    """What a comparison has counted."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("unchanged", *KINDS), 0))
    samples: dict[str, list[bytes]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Some keys that are new, changed or deleted, encoded."""

    def add(self, other: Found) -> None:
        """Add what another comparison has counted."""
        for kind, count in other.counts.items():
            self.counts[kind] += count
        for kind, keys in other.samples.items():
            self.samples[kind] += keys[: SAMPLES - len(self.samples[kind])]

    def report(self, reader: Queue, options: MirrorOptions) -> MirrorReport:
        """Return the report of a mirror load."""
        samples: dict[str, list[Any]] = {kind: [*map(reader.decode_key, keys)] for kind, keys in self.samples.items()}
        return MirrorReport(queue=reader.source, dry_run=options.dry_run, samples=samples, **self.counts)


def check_deletes(report: MirrorReport, options: MirrorOptions) -> None:
    """Check that a mirror load deletes no more than it may.

    :raises MirrorRefused: it would.
    """
    records = report.unchanged + report.changed + report.deleted
    allowed = options.allowed(records)
    if report.deleted > allowed:
        raise MirrorRefused(
            f"queue {report.queue!r}: the data set would delete {report.deleted} of {records} records, and max_deletes="
            f"{options.max_deletes} allows {allowed}; among them {', '.join(map(repr, report.samples['deleted']))}",
            hint="if the data set is complete, allow more: max_deletes=0.5 is half of them, 1.0 all, 500 a number",
        )
