"""The report of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, get_args

from export_queue.core.drain import grouped
from export_queue.core.printable import printable
from export_queue.core.verify.judging import Difference

MOST_SAMPLES = 10
DIFFERENCES: tuple[Difference, ...] = get_args(Difference)


@dataclass(frozen=True, slots=True)
class Sample:
    """One record that differs. Documents are not shown: they may be confidential."""

    target: str
    """The sink's own name of the table, index or key template."""
    id: str
    """As text; other bytes than UTF-8 are escaped."""
    expected_seq: str | None
    """Sequence of the latest entry; None if no entry names the record, or sequences are not known."""
    found_seq: str | None
    """Sequence in the sink; None if the record does not exist there, or has no rank."""

    def __str__(self) -> str:
        return f"{self.target} {self.id} (expected seq {self.expected_seq or '–'}, found {self.found_seq or '–'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of one comparison."""

    queue: str
    sink: str
    source: str
    cut: int
    """Everything that was committed up to this sequence was compared."""
    ranked: bool
    """Whether ranks were compared, too. If not, an old document that equals the new one cannot be noticed."""
    compared: int = 0
    """Records that the source names, tombstones included."""
    scanned: int = 0
    """Records that were read from the sink, tombstones included."""
    missing: int = 0
    """Records, or tombstones, that the sink lacks."""
    extra: int = 0
    """Records in the sink that no entry has put there, or that were deleted."""
    different: int = 0
    """Records with the right rank and another document."""
    stale: int = 0
    """Records with a lower rank than the latest entry."""
    ahead: int = 0
    """Records with a higher rank than any entry: later entries would be stale. Only a rebuild helps."""
    dead: int = 0
    """Records whose latest entry is a dead letter."""
    queued: int = 0
    """Records that differ because an entry is pending."""
    younger: int = 0
    """Records that differ because an entry was committed after the last cut."""
    repaired: int = 0
    """Records that a repair has written again or deleted. The other counts are of the comparison after it."""
    undeleted: int = 0
    """Extra records that a repair has left, because there are more than ``max_deletes`` allows."""
    seconds: float = 0.0
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """Up to ten records of each kind of difference, and of dead ones."""

    @property
    def differences(self) -> int:
        """Number of records that differ without an excuse."""
        return sum(getattr(self, name) for name in DIFFERENCES)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; sequences are text, because other programs read numbers as doubles."""
        data = asdict(self)
        excused = {name: data.pop(name) for name in ("queued", "younger")}
        return data | {"cut": str(self.cut), "excused": excused, "differences": self.differences}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        samples = {kind: [Sample(**sample) for sample in found] for kind, found in data["samples"].items()}
        own = data | data["excused"] | {"cut": int(data["cut"]), "samples": samples}
        known = {one.name for one in fields(cls)}  # a newer version may have stored others
        return cls(**{name: value for name, value in own.items() if name in known})

    def line(self) -> str:
        """Return the report as one line for the log."""
        found, others = self._counts(DIFFERENCES), self._counts(("dead", "queued", "younger"))
        text = f"{self.queue} ↔ {self.sink}: {grouped(self.compared)} records compared: "
        differences = "1 difference" if self.differences == 1 else f"{grouped(self.differences)} differences"
        text += f"{differences} ({found})" if found else "no differences"
        text += f"; excused: {others}" if others else ""
        without = "" if self.ranked else "; documents only, since ranks are not known"
        mended = f"; {grouped(self.repaired)} repaired before" if self.repaired else ""
        return printable(f"{text}{without}{mended}; {self.seconds:.1f} s")

    def _counts(self, names: Sequence[str]) -> str:
        counts = {name: getattr(self, name) for name in names}
        return ", ".join(f"{grouped(count)} {name}" for name, count in counts.items() if count)

    def lines(self) -> list[str]:
        """Return the line, the samples, and what to do about them."""
        shown = [self.line()]
        for kind, samples in self.samples.items():
            shown += [printable(f"  {kind}: {sample}") for sample in samples]
        if self.ahead:
            shown.append("  ranks above every entry's cannot be repaired: fill a new target with a first load")
        if self.undeleted:
            shown.append(
                f"  {grouped(self.undeleted)} extra records were not deleted: make sure that no other queue writes "
                "there, and allow more (max_deletes)"
            )
        return shown
