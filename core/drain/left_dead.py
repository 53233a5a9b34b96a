"""Whether a drain may leave dead letters: by default a task that leaves some fails, after it has drained the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from export_queue.core.arguments import text, whole_number
from export_queue.core.drain.admission import StoreHandle
from export_queue.core.drain.report import DrainReport, grouped
from export_queue.core.errors import DeadLettersLeft, InvalidArgument
from export_queue.core.queue import Range, find_queue
from export_queue.core.store import queries

ALLOW: Final = "allow"
_REASON_CHARACTERS = 300


def dead_letters_allowed(value: Any, *, what: str) -> int | Literal["allow"]:
    """Read how many dead letters a drain may leave: ``fail`` (none; also None), ``allow``, or a whole number.

    :raises InvalidArgument: it is something else.
    """
    try:
        found = text(value, what=what, default="fail")
        if found in ("fail", ALLOW):
            return 0 if found == "fail" else ALLOW
        return whole_number(value, what=what)
    except InvalidArgument:
        raise InvalidArgument(f'{what}: expected "fail", "{ALLOW}" or a whole number, found {value!r}') from None


def refuse_dead_letters(
    store: StoreHandle, report: DrainReport, allowed: int | Literal["allow"], *, of_ranges: bool
) -> None:
    """Fail if a reader has more dead letters than allowed, from this drain or from earlier ones.

    :param report: the report of a drain that succeeded.
    :param of_ranges: whether the drain had only some ranges: then letters of the other ranges do not count.
    :raises DeadLettersLeft: there are more; the error has their number and the reason of the oldest.
    """
    if allowed == ALLOW:
        return
    units: Sequence[Range] = (*report.ranges, *report.skipped) if of_ranges else ()
    with store.database.read() as work:
        number = find_queue(work, report.queue).number
        left, oldest = queries.dead_letters.count_with_oldest(
            work, number, [(unit.layout, unit.first, unit.end) for unit in units]
        )
    if left <= allowed or oldest is None:  # somebody may drop them between the two statements
        return
    error = DeadLettersLeft(
        f"{report.queue}: {grouped(left)} dead letters; allowed: {grouped(allowed)}; everything else was delivered; "
        f"the oldest: {oldest['error_class']}: {oldest['reason'][:_REASON_CHARACTERS]}",
        hint=f"see them: export-queue dead list {report.queue}; then mend the cause and retry or drop them; "
        "dead_letters='allow', or a number, lets a drain succeed nevertheless",
    )
    error.add_note(report.line())
    raise error
