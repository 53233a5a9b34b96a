"""The report of a drain: counts that reconcile (I13), stored as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from export_queue.core import errors
from export_queue.core.errors import DrainError, ExportQueueError, text_of
from export_queue.core.printable import printable
from export_queue.core.queue import Range, join_ranges, remedy
from export_queue.core.retry import is_transient


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of entries and operations of a drain, or of a part of one.

    Operations are counted when their entries leave the queue.
    """

    read: int = 0
    """Entries read from the queue."""
    acknowledged: int = 0
    """Entries that are in the sink and were removed from the queue."""
    dead: int = 0
    """Entries that became dead letters."""
    left: int = 0
    """Entries that were read and are still in the queue; entries that were not read are not counted."""
    produced: int = 0
    """Operations that the exporter made from acknowledged and dead entries."""
    written: int = 0
    stale: int = 0
    """Operations for which the sink already held the same or a newer version."""
    collapsed: int = 0
    """Operations that were not sent because a newer one of the same record was."""
    rejected: int = 0
    """Operations that the sink rejected, or that were not sent because their entry was dead."""
    bytes: int = 0
    """Size of keys and values of the entries that left the queue."""
    lowest_seq: int | None = None
    highest_seq: int | None = None

    def check(self) -> None:
        """Check that the counts reconcile.

        :raises DrainError: they do not, which is a bug of this library.
        """
        if self.read != self.acknowledged + self.dead + self.left:
            raise DrainError(
                f"counts do not reconcile: {self.read} entries read, but "
                f"{self.acknowledged} acknowledged + {self.dead} dead + {self.left} left"
            )
        if self.produced != self.written + self.stale + self.collapsed + self.rejected:
            raise DrainError(
                f"counts do not reconcile: {self.produced} operations produced, but {self.written} written + "
                f"{self.stale} stale + {self.collapsed} collapsed + {self.rejected} rejected"
            )


def total(parts: Iterable[Counts]) -> dict[str, Any]:
    """Add up counts; the result is for the constructor of :class:`Counts` or of a subclass."""
    parts = list(parts)
    added = [f.name for f in fields(Counts) if not f.name.endswith("_seq")]
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in added}
    sums["lowest_seq"] = min((part.lowest_seq for part in parts if part.lowest_seq is not None), default=None)
    sums["highest_seq"] = max((part.highest_seq for part in parts if part.highest_seq is not None), default=None)
    return sums


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as data, for stored reports and Spark's executors."""

    error_class: str
    message: str
    transient: bool
    hint: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        if isinstance(error, ExportQueueError):
            return cls(type(error).__name__, text_of(error.message), error.transient, error.hint)
        # an interruption says nothing about the work
        return cls(type(error).__name__, text_of(error), is_transient(error) or not isinstance(error, Exception))

    def to_error(self) -> ExportQueueError:
        """Return an exception, of the original class if it is one of this library's."""
        kind = getattr(errors, self.error_class, None)
        if isinstance(kind, type) and issubclass(kind, ExportQueueError) and kind is not errors.AlreadyCommitted:
            error = kind(self.message, hint=self.hint)
        else:
            error = DrainError(f"{self.error_class}: {self.message}", hint=self.hint)
        error.transient = self.transient
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReport(Counts):
    """The result of one claimed range."""

    range: Range
    problem: Problem | None = None
    """Why the drain of the range stopped early; None if it did not."""
    cause: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception, if it was raised in this process."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(replace(self, cause=None)) | {"range": self.range.to_json()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        problem = data["problem"]
        return cls(**data | {"range": Range(*data["range"]), "problem": Problem(**problem) if problem else None})


def by_range(parts: Iterable[RangeReport]) -> list[RangeReport]:
    """Add up the reports of each unit's parts; a unit has the first problem of its parts."""
    found: dict[Range, list[RangeReport]] = {}
    for part in parts:
        found.setdefault(part.range, []).append(part)
    reports = []
    for unit, of_unit in sorted(found.items()):
        first = next((part for part in of_unit if part.problem is not None), of_unit[0])
        reports.append(RangeReport(range=unit, problem=first.problem, cause=first.cause, **total(of_unit)))
    return reports


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport(Counts):
    """The result of one drain. It is returned, stored under its id, and logged as one line."""

    queue: str
    sink: str
    """Name of the sink that the queue is bound to."""
    drain_id: str
    ranges: tuple[Range, ...] = ()
    """Requested ranges that were drained; neighbours are joined."""
    skipped: tuple[Range, ...] = ()
    """Requested ranges that were not drained, wholly or partly: others held them (``if_locked="skip"``), or the problem
    came first."""
    waiting: int | None = None
    """Committed entries that are pending in the requested ranges at the end of the drain; None if they were not
    counted."""
    oldest_left_seconds: float = 0.0
    """Age of the oldest of them."""
    seconds: float = 0.0
    problem: Problem | None = None
    """Why the drain stopped early; None if it did not."""
    first_rejection: str | None = None
    """Class and reason of the first dead letter; None if there is none."""
    first_load: str | None = None
    """State of the first load of a subscription that is newer than its queue: ``missing``, ``made`` or ``waived``."""
    incomplete: tuple[str, ...] = ()
    """Accepted losses that make the sink incomplete, with who accepted them, when, and how much; empty if none."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; sequences are text, because other programs read numbers as doubles."""
        data = asdict(self)
        for name in ("ranges", "skipped"):
            data[name] = [part.to_json() for part in getattr(self, name)]
        for name in ("lowest_seq", "highest_seq"):
            data[name] = None if data[name] is None else str(data[name])
        data["incomplete"] = list(self.incomplete)  # a list like the others: Airflow's XCom distinguishes tuples
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        changed: dict[str, Any] = {name: tuple(Range(*pair) for pair in data[name]) for name in ("ranges", "skipped")}
        for name in ("lowest_seq", "highest_seq"):
            changed[name] = None if data[name] is None else int(data[name])
        changed["incomplete"] = tuple(data.get("incomplete", ()))
        changed["problem"] = Problem(**data["problem"]) if data["problem"] else None
        known = {one.name for one in fields(cls)}  # a newer version may have stored others
        return cls(**{name: value for name, value in (data | changed).items() if name in known})

    def line(self) -> str:
        """Return the report as one line for the log."""
        return printable(self._line())

    def _line(self) -> str:
        queue = " ".join(filter(None, [self.queue, _ranges_text(self.ranges + self.skipped)]))
        text = (
            f"{queue} → {self.sink}: "
            f"{grouped(self.read)} read = {grouped(self.acknowledged)} acknowledged + {grouped(self.dead)} dead "
            f"+ {self._left_text()}; {self.seconds:.1f} s"
        )
        if self.incomplete:
            more = f" and {len(self.incomplete) - 1} more" if len(self.incomplete) > 1 else ""
            text += f"; the sink is incomplete: {self.incomplete[0]}{more}"
        if self.problem is not None:
            return f"{text}; stopped by {self.problem.error_class}"
        if self.skipped:
            return f"{text}; skipped {_ranges_text(self.skipped)}, which others hold"
        return text

    def _left_text(self) -> str:
        if self.waiting == self.left == 0:
            return "0 left"
        read = f"{grouped(self.left)} not removed; "
        if self.waiting is None:
            return f"{read}what is left in the queue was not counted"
        oldest = f", the oldest {self.oldest_left_seconds:.0f} s old" if self.waiting else ""
        return f"{read}{grouped(self.waiting)} left in the queue{oldest}"

    def warnings(self) -> list[str]:
        """Return what needs attention: dead letters, a missing first load, an incomplete sink."""
        found = []
        if self.dead:
            found.append(
                f"{self.queue}: dead letters: {grouped(self.dead)}"
                + (f", the first: {self.first_rejection}" if self.first_rejection else "")
                + f"; see them: export-queue dead list {self.queue} --drain-id {self.drain_id}"
            )
        if self.first_load == "missing":
            found.append(
                f"{self.queue}: the first load is missing: the sink lacks what was committed before the subscription; "
                f"store.first_load({self.queue!r}) makes it, store.waive_first_load({self.queue!r}) ends this warning"
            )
        if self.incomplete:
            found.append(f"{self.queue}: the sink is incomplete: {'; '.join(self.incomplete)}; {remedy(self.queue)}")
        return list(map(printable, found))


def _ranges_text(ranges: Sequence[Range]) -> str:
    joined = join_ranges(ranges)
    shown = [str(part) for part in joined[:3]]
    return " ".join(shown) + (f" and {len(joined) - 3} more" if len(joined) > 3 else "")


def grouped(number: int) -> str:
    """Return a number with its digits in groups of three."""
    return f"{number:,}".replace(",", " ")
