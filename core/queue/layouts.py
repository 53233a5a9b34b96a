"""Layouts of a queue: how a new one replaces another while entries are added, loaded and drained.

After a change of the queue, new entries go into the *current* layout; pending entries are drained from the older ones.
A long transaction that began earlier adds all its entries to the layout that was current then. So none of its keys is
in two layouts with the same sequence, where a sink could not tell which entry counts.

An older layout is *closed* when it is empty and every transaction that would add to it has ended.
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
    """Read a queue in the layout to which a transaction in progress adds.

    :raises UnknownQueue: the queue does not exist.
    """
    queue = find_queue(work, queue_id)
    if queue.layout == FIRST_LAYOUT:
        return queue
    found = queries.layouts.of_transaction(work, queue.source_number, transaction)
    return queue.in_layout(queue.layout) if found is None else queue.laid_out_as(Layout(*found))


def former_layouts(work: Reading, queue: Queue) -> tuple[Layout, ...]:
    """Read all layouts before the current one, oldest first, including closed ones."""
    if queue.layout == FIRST_LAYOUT:
        return ()
    found = queries.layouts.former(work, queue.source_number, before=queue.layout)
    return tuple(Layout(*layout) for layout in found)


def in_all_layouts(work: Reading, queue: Queue) -> Queue:
    """Return a queue with all its former layouts, including closed ones, to which dead letters may belong."""
    return replace(queue, older=former_layouts(work, queue))


def units_asked_for(
    work: Reading, queue: Queue, ranges: Iterable[Range | Sequence[int]] | None
) -> tuple[list[Range], list[Range]]:
    """Split ranges into units: those of open layouts, and those of closed layouts, which have no pending entries.

    :param ranges: ranges of any layout that the queue has had; None means all of open layouts.
    :raises InvalidArgument: a range is not whole units, or the queue never had its layout.
    """
    if ranges is None:
        return queue.open_units(), []
    units = split(ranges, in_all_layouts(work, queue).layouts())
    are_open = {layout.number for layout in queue.layouts()}
    return [unit for unit in units if unit.layout in are_open], [unit for unit in units if unit.layout not in are_open]


def units_to_watch(work: Reading, queue: Queue, ranges: Iterable[Range | Sequence[int]] | None) -> list[Range]:
    """Split ranges into their units of open layouts. Waiting for entries in closed ones would never end.

    :param ranges: as in :func:`units_asked_for`.
    :raises InvalidArgument: all of them belong to closed layouts; or as in :func:`units_asked_for`.
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
    """Read a queue again, and keep the layouts that an earlier read found, because ranges may refer to them.

    :raises UnknownQueue: the queue was removed.
    """
    now = find_queue(work, queue.id)
    known = {layout.number: layout for layout in (*queue.layouts(), *now.layouts())}
    return replace(now, older=tuple(known[number] for number in sorted(known) if number != now.layout))


def close_layouts(database: Database, queue: Queue) -> None:
    """Close the older layouts of a queue that are empty and to which no transaction will add.

    :param queue: the queue, or one of its subscriptions; all of them must have drained a layout before it is closed.
    """
    if not queue.older:
        return
    with database.read() as work:
        ceased = queries.layouts.ceased_ids(work, queue.source_number)
    # Before checking that layouts are empty: a transaction in progress now may add entries after the check.
    lowest = min(take_snapshot(database).excluded, default=None)
    for number, last in ceased.items():
        if lowest is None or lowest > last:
            with database.begin() as work:
                queries.layouts.try_close(work, queue.source_number, number)
