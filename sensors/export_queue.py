"""The sensor that waits for entries of a queue, and the grouping of its units."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from export_queue.core.arguments import parse_ranges, required_text, whole_number
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.sensors.waiting import WaitForStore
from export_queue.triggers import ExportQueueTrigger


class ExportQueueSensor(WaitForStore):
    """Wait until a queue has pending entries, and return their units.

    It consumes nothing.

    :param queue_id: the queue. (templated)
    :param ranges: ranges of buckets to watch, ``[[0, 101], …]``; None for all. (templated)
    :param groups: None returns the units that have work, ``[[0, 101], [202, 303]]``; a number returns at most
        that many groups of units with about the same number of entries, for
        ``DrainOperator.partial(…).expand(ranges=sensor.output)``. (templated)
    :param deferrable: wait on the triggerer, without occupying a worker.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "ranges": parse_ranges,
        "groups": optional(whole_number, least=1),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    ui_color = "#eee4f5"

    def __init__(
        self,
        *,
        queue_id: str,
        ranges: Any = None,
        groups: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(groups, int):
            whole_number(groups, what="groups", least=1)
        self.queue_id = queue_id
        self.ranges = ranges
        self.groups: Any = groups

    def look(self) -> dict[str, Any]:
        """Find the units that have work. Entries are not counted, because most calls find none."""
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            waiting = store.waiting_ranges(self.queue_id, self.ranges)
        return {"waiting": [unit.to_json() for unit in waiting]} if waiting else {}

    def trigger(self) -> ExportQueueTrigger:
        """Watch the queue."""
        return ExportQueueTrigger(
            queue_id=self.queue_id,
            ranges=self.ranges,
            poll_interval=self.poke_interval,
            export_queue_conn_id=self.export_queue_conn_id,
        )

    def result(self, seen: dict[str, Any]) -> list[Any]:
        """Return ranges, or groups of ranges."""
        waiting = seen["waiting"]
        self.log.info("Queue %s: entries are pending in %d units", self.queue_id, len(waiting))
        if self.groups is None:
            return waiting
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            entries = {tuple(unit.range.to_json()): unit.entries for unit in store.backlog(self.queue_id)}
        # A unit that was drained meanwhile has weight 0, and stays in the announced list.
        weighed = [[*unit, entries.get(tuple(unit), 0)] for unit in waiting]
        return group_ranges(weighed, self.groups)


def group_ranges(waiting: Sequence[Sequence[int]], groups: int) -> list[list[list[int]]]:
    """Distribute units to groups of about equal work: the heaviest unit first, to the lightest group.

    :param waiting: ``[first, end, entries]`` of each unit, or ``[first, end, layout, entries]``.
    :param groups: maximum number of groups.
    :returns: groups of ranges, ascending, with adjacent ones joined.
    """
    from export_queue.core.queue import Range, as_range, join_ranges

    dealt: list[list[Range]] = [[] for _ in range(min(groups, len(waiting)))]
    weights = [0] * len(dealt)
    weighed = [(as_range(unit), entries) for *unit, entries in waiting]
    for unit, entries in sorted(weighed, key=lambda one: (-one[1], one[0])):
        lightest = weights.index(min(weights))
        dealt[lightest].append(unit)
        weights[lightest] += max(entries, 1)
    joined = [join_ranges(units) for units in dealt]
    return [[part.to_json() for part in group] for group in sorted(joined)]
