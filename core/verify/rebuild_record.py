"""What the store knows of a rebuild: its readers, its pointers, and the phase that each step may begin in.

=============  =====================================================================
phase          means
=============  =====================================================================
``filling``    ``start`` has begun: the new reader or its first load may be missing
``following``  the new target follows the queue; pointers lead to the old one
``switching``  ``switch`` has begun to change the pointers
``switched``   pointers lead to the new target; the old one follows the queue
``returning``  ``back`` has begun to change the pointers
``finishing``  ``finish`` has begun to remove the old reader
``finished``   the old reader is removed
``cancelling`` ``cancel`` has begun to remove the new reader
``cancelled``  the new reader is removed
=============  =====================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Database, queries

Step = Literal["start", "switch", "back", "finish", "cancel"]
STEPS: tuple[Step, ...] = get_args(Step)
BEGINS_IN: Mapping[Step, frozenset[str]] = {
    "start": frozenset({"filling", "following"}),
    "switch": frozenset({"following", "switching", "switched", "returning"}),
    "back": frozenset({"switched", "switching", "returning", "following"}),
    "finish": frozenset({"switched", "finishing", "finished"}),
    "cancel": frozenset({"filling", "following", "cancelling", "cancelled"}),
}
"""The phases in which a step may begin. A step that has taken effect may be repeated, and one that was killed too."""
_REMEDY: Mapping[str, str] = {
    "filling": "repeat start",
    "following": "switch first",
    "switching": "the switch was interrupted: repeat it, or go back first",
    "switched": "go back first",
    "returning": "going back was interrupted: repeat it first",
    "finishing": "repeat finish",
    "finished": "start another rebuild",
    "cancelling": "repeat cancel",
    "cancelled": "start another rebuild",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """A rebuild of the target of a reader, as the store has recorded it."""

    reader: str
    """The reader whose target is replaced, such as ``airports/search``."""
    new_reader: str
    """The subscription that fills the new target."""
    phase: str
    pointers: Mapping[str, str]
    """The collection of each pointer."""
    source: str
    binding: Mapping[str, Any]
    """Options and exporter of the new target."""
    who: str
    """Who has started it."""
    begun: datetime
    changed: datetime
    """When the phase was reached."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what the store has recorded."""
        begun, changed = (datetime.fromtimestamp(row[name] / 1000, UTC) for name in ("begun_ms", "changed_ms"))
        names = {name: row[name] for name in ("reader", "new_reader", "phase", "who")}
        return cls(**names, **json.loads(row["options"]), begun=begun, changed=changed)

    def options(self) -> str:
        """Return what ``start`` was asked for, as JSON."""
        named = {"pointers": dict(self.pointers), "source": self.source, "binding": dict(self.binding)}
        return json.dumps(named, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the rebuild as JSON values."""
        times = {name: getattr(self, name).isoformat(timespec="milliseconds") for name in ("begun", "changed")}
        plain = {"pointers": dict(self.pointers), "source": self.source, "binding": dict(self.binding)}
        return {"queue": self.reader, "new": self.new_reader, "phase": self.phase, **plain, "who": self.who, **times}

    def line(self) -> str:
        """Describe the rebuild in one line."""
        names = ", ".join(sorted(self.pointers))
        return f"{self.reader} → {self.new_reader}: {self.phase} since {self.changed:%Y-%m-%d %H:%M:%S} UTC ({names})"


def check_step(record: Rebuild, step: Step) -> None:
    """Refuse a step in a phase in which it cannot begin (pure).

    :raises InvalidArgument: the error names the phase and the step that comes first.
    """
    if record.phase not in BEGINS_IN[step]:
        raise InvalidArgument(
            f"rebuild of {record.reader!r}: {step} may begin in {', '.join(sorted(BEGINS_IN[step]))}, "
            f"found the phase {record.phase}",
            hint=_REMEDY[record.phase],
        )


def find_rebuild(database: Database, reader: str, step: Step | None = None) -> Rebuild:
    """Find the last rebuild of a reader.

    :param step: the step that is to begin.
    :raises InvalidArgument: there is none, or the step cannot begin in its phase.
    """
    with database.read() as work:
        row = queries.rebuilds.find(work, reader)
    if row is None:
        raise InvalidArgument(
            f"reader {reader!r} has no rebuild",
            hint="start one: store.rebuilds.start(…); export-queue rebuild status lists those that exist",
        )
    record = Rebuild.of_row(row)
    if step is not None:
        check_step(record, step)
    return record


def list_rebuilds(database: Database) -> list[Rebuild]:
    """Return the last rebuild of each reader, by name."""
    with database.read() as work:
        return [Rebuild.of_row(row) for row in queries.rebuilds.all_of(work)]


def next_name(name: str) -> str:
    """Return the default name of the new reader: that of the old one with the next number (pure)."""
    stem, dash, number = name.rpartition("-")
    return f"{stem}-{int(number) + 1}" if dash and stem and number.isdecimal() else f"{name}-2"
