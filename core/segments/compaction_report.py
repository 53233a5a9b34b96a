"""What a compaction or move did, or would do, and its progress."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from export_queue.core.queue import Range


@dataclass(frozen=True, slots=True)
class UnitCompacted:
    """What was merged in one unit, or would be."""

    range: Range
    inputs: int
    """Segments."""
    rows: int
    read: int
    """Entries of both; in a dry run approximate."""
    written: int
    superseded: int
    """Entries that a later or equal entry of their key replaces."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self) | {"range": self.range.to_json()}

    def line(self, *, dry_run: bool) -> str:
        """Return a one-line summary."""
        what = f"{self.range}: {self.inputs} segments and {self.rows} rows"
        if dry_run:
            return f"{what}, about {self.read} entries"
        return f"{what}: {self.read} read = {self.written} written + {self.superseded} superseded"


@dataclass(slots=True)
class CompactionReport:
    """What one compaction or move did for one reader, or would do.

    read = written + superseded, in sum and in each unit (I13).
    """

    queue: str
    dry_run: bool = False
    older_layouts: bool = False
    """Whether it moved what was pending in older layouts into the current one."""
    still_open: tuple[int, ...] = ()
    """Of a move: older layouts in which something is pending, or to which a transaction may still add."""
    units: list[UnitCompacted] = field(default_factory=list)
    """Units in which something was merged."""
    passed_over: int = 0
    """Units that others worked in."""
    lost: int = 0
    """Units whose locks were revoked, or whose rows changed, before the publication. They are unchanged."""
    outputs: int = 0
    """Segments that were written."""
    files: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """Segments that were replaced."""
        return sum(unit.inputs for unit in self.units)

    @property
    def rows(self) -> int:
        """Rows that were replaced."""
        return sum(unit.rows for unit in self.units)

    @property
    def read(self) -> int:
        """Entries of both."""
        return sum(unit.read for unit in self.units)

    @property
    def written(self) -> int:
        """Entries that were written."""
        return sum(unit.written for unit in self.units)

    @property
    def superseded(self) -> int:
        """Entries that were left out."""
        return sum(unit.superseded for unit in self.units)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        sums = ("inputs", "outputs", "rows", "read", "written", "superseded")
        return {
            "queue": self.queue,
            "dry_run": self.dry_run,
            **{name: getattr(self, name) for name in sums},
            "passed_over": self.passed_over,
            "lost": self.lost,
            "files": self.files,
            "seconds": self.seconds,
            "units": [unit.to_json() for unit in self.units],
            **({"still_open": list(self.still_open)} if self.older_layouts else {}),
        }

    def summary(self) -> dict[str, Any]:
        """Return the JSON object with the number of units in place of the units."""
        return {**self.to_json(), "units": len(self.units)}

    def line(self) -> str:
        """Return a one-line summary."""
        sources = f"{self.inputs} segments and {self.rows} rows"
        units = f"{len(self.units)} units" + (" of older layouts" if self.older_layouts else "")
        if self.dry_run:
            verb = "rewrite" if self.older_layouts else "merge"
            return (
                f"{self.queue}: would {verb} {sources} in {units}, about {self.read} entries; "
                f"{self.passed_over} units are worked on"
            )
        verb = "rewritten" if self.older_layouts else "merged"
        still_open = "; no older layout is open" if self.older_layouts else ""
        if self.still_open:
            still_open = f"; older layouts still open: {', '.join(map(str, self.still_open))}"
        return (
            f"{self.queue}: {sources} in {units} {verb} into {self.outputs} segments: {self.read} read = "
            f"{self.written} written + {self.superseded} superseded; {self.passed_over} units passed over, "
            f"{self.lost} lost; {self.seconds:.1f} s{still_open}"
        )


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """The progress of a compaction or move."""

    done: int
    """Approximate number of entries."""
    total: int
