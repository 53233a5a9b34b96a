"""Layouts of a queue: how one follows on another while entries are added, loaded and drained.

New entries go into the *current* layout from the moment in which the queue is altered; what waits in an older one is
drained from there. A long transaction that had begun before adds all that it adds to the layout that was current then:
no key of it lies in two layouts under one sequence, since a sink could not tell which of two such entries counts.

An older layout is *closed* once it is empty and every transaction has ended that would add to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue.buckets import FIRST_LAYOUT, Layout, Range, join_ranges, split
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.stored_queues import find_queue
from export_queue.core.store import Database, Reading, queries
from export_queue.core.transactions import take_snapshot


def queue_of(work: Reading, queue_id: str, transaction: int) -> Queue:
    """Read a queue in the layout in which a transaction that has begun adds to it.

    :param queue_id: the queue.
    :param transaction: its id; it is in progress.
    :raises UnknownQueue: there is no such queue.
    """
    queue = find_queue(work, queue_id)
    if queue.layout == FIRST_LAYOUT:
        return queue
    found = queries.layouts.of_transaction(work, queue.source_number, transaction)
    return queue.in_layout(queue.layout) if found is None else queue.laid_out_as(Layout(*found))


def former_layouts(work: Reading, queue: Queue) -> tuple[Layout, ...]:
    """Read all layouts that a queue had before its current one, oldest first, closed ones too."""
    if queue.layout == FIRST_LAYOUT:
        return ()
    found = queries.layouts.former(work, queue.source_number, before=queue.layout)
    return tuple(Layout(*layout) for layout in found)


def in_all_layouts(work: Reading, queue: Queue) -> Queue:
    """Return a queue with all of its former layouts: places in closed ones, as dead letters have, are known to it."""
    return replace(queue, older=former_layouts(work, queue))


def units_asked_for(
    work: Reading, queue: Queue, ranges: Iterable[Range | Sequence[int]] | None
) -> tuple[list[Range], list[Range]]:
    """Cut ranges into units: those in which entries may wait, and those of closed layouts, in which nothing does.

    :param ranges: ranges of any layout that the queue has had; None means all in which entries may wait.
    :raises InvalidArgument: a range is not whole units, or the queue never had its layout.
    """
    if ranges is None:
        return queue.open_units(), []
    units = split(ranges, in_all_layouts(work, queue).layouts())
    are_open = {layout.number for layout in queue.layouts()}
    return [unit for unit in units if unit.layout in are_open], [unit for unit in units if unit.layout not in are_open]


def units_to_watch(work: Reading, queue: Queue, ranges: Iterable[Range | Sequence[int]] | None) -> list[Range]:
    """Cut ranges into the units of them in which entries may wait: who waits for some elsewhere would wait for ever.

    :param ranges: as of :func:`units_asked_for`.
    :raises InvalidArgument: nothing can wait in any of them; or as of :func:`units_asked_for`.
    """
    units, closed = units_asked_for(work, queue, ranges)
    if closed and not units:
        raise InvalidArgument(
            f"range {join_ranges(closed)[0]}: expected one of layout "
            f"{' or '.join(str(layout.number) for layout in queue.layouts())}, "
            f"found one of layout {closed[0].layout}, in which nothing waits any more",
            hint="list the ranges anew: one of a later layout than the first names it, as in "
            f"{queue.units()[0].to_json()}",
        )
    return units


def read_again(work: Reading, queue: Queue) -> Queue:
    """Read a queue as it is now, with all layouts that it was known to have before: places in these may be asked for.

    :param queue: the queue as it was read before.
    :raises UnknownQueue: it was removed.
    """
    now = find_queue(work, queue.id)
    known = {layout.number: layout for layout in (*queue.layouts(), *now.layouts())}
    return replace(now, older=tuple(known[number] for number in sorted(known) if number != now.layout))


def close_layouts(database: Database, queue: Queue) -> None:
    """Close the older layouts of a queue in which nothing waits, and to which nobody will add any more.

    :param queue: the queue, or one of its subscriptions; all of them must have drained a layout before it is closed.
    """
    if not queue.older:
        return
    with database.read() as work:
        ceased = queries.layouts.ceased_ids(work, queue.source_number)
    # Before the look: whoever is in progress by then, may add what the look does not find.
    lowest = min(take_snapshot(database).excluded, default=None)
    for number, last in ceased.items():
        if lowest is None or lowest > last:
            with database.begin() as work:
                queries.layouts.try_close(work, queue.source_number, number)
