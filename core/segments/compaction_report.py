"""What a compaction did, or would do, and how far it has come; values."""

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
    """Entries of both; of a dry run about."""
    written: int
    superseded: int
    """Entries in whose place a later one of their key counts: of the same transaction, or as the queue says."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self) | {"range": self.range.to_json()}

    def line(self, *, dry_run: bool) -> str:
        """Say it in one line."""
        what = f"{self.range}: {self.inputs} segments and {self.rows} rows"
        if dry_run:
            return f"{what}, about {self.read} entries"
        return f"{what}: {self.read} read = {self.written} written + {self.superseded} superseded"


@dataclass(slots=True)
class CompactionReport:
    """What one compaction did for one reader, or would do: read = written + superseded, in sum and in each unit."""

    queue: str
    dry_run: bool = False
    units: list[UnitCompacted] = field(default_factory=list)
    """Those in which something was merged."""
    passed_over: int = 0
    """Units that somebody worked on."""
    lost: int = 0
    """Units whose locks were revoked, or whose rows changed, before the publication: all is as it was."""
    files: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """Segments that were merged."""
        return sum(unit.inputs for unit in self.units)

    @property
    def outputs(self) -> int:
        """Segments that were made of them."""
        return sum(unit.written > 0 for unit in self.units)

    @property
    def rows(self) -> int:
        """Rows that were merged."""
        return sum(unit.rows for unit in self.units)

    @property
    def read(self) -> int:
        """Entries of segments and rows."""
        return sum(unit.read for unit in self.units)

    @property
    def written(self) -> int:
        """Entries of the merged segments."""
        return sum(unit.written for unit in self.units)

    @property
    def superseded(self) -> int:
        """Entries in whose place later ones count."""
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
        }

    def summary(self) -> dict[str, Any]:
        """Return the same with the number of units in the place of each."""
        return {**self.to_json(), "units": len(self.units)}

    def line(self) -> str:
        """Say it in one line."""
        units = f"{len(self.units)} units"
        if self.dry_run:
            return (
                f"{self.queue}: would merge {self.inputs} segments and {self.rows} rows in {units}, about "
                f"{self.read} entries; {self.passed_over} units are worked on"
            )
        return (
            f"{self.queue}: {self.inputs} segments and {self.rows} rows merged into {self.outputs} segments "
            f"in {units}: {self.read} read = {self.written} written + {self.superseded} superseded; "
            f"{self.passed_over} units passed over, {self.lost} lost; {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """How far a compaction has come."""

    done: int
    """Entries that were merged, about."""
    total: int
