"""``export-queue status``, ``configure``, ``alter``, ``subscribe`` …: the queues of a store, their options, readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from export_queue.core.cli.console import seq_time, show, show_one
from export_queue.core.cli.options import AsJson, Complete, QueueId, StoreOptions, Who, command
from export_queue.core.client import Store
from export_queue.core.queue import Mark, Queue


def readers_of(store: Store, queue_id: str) -> list[Queue]:
    """Return the readers of a queue: its subscriptions, or the queue or subscription itself."""
    return store.subscriptions(queue_id) or [store.queue(queue_id)]


def hidden_reader(queue_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Hide the column of readers where all rows are those of the queue that was asked for."""
    return ("queue",) if all(row["queue"] == queue_id for row in rows) else ()


@command()
def status(
    store: StoreOptions,
    as_json: AsJson = False,
) -> None:
    """Show every queue: how many entries wait, the age of the oldest, its dead letters and its sink.

    A queue with subscriptions has a line for each of them, which says whether its first load is missing. Where the
    buckets of a queue were altered and its older layout is not empty yet, it says how many of the entries wait there.

    Marks say what a sink lacks because somebody accepted a loss, and what somebody promised. A queue with subscriptions
    has a line of its own if one of them was removed with what waited for it. Acts on the whole store, such as its
    adoption, have a line without a queue.
    """
    rows: list[dict[str, Any]] = []
    with store.open() as opened:
        for queue in opened.queues():
            found = opened.marks(queue.id)
            if queue.fans_out and not found:
                continue
            units = [] if queue.fans_out else opened.backlog(queue.id)
            oldest = min((unit.oldest_seq for unit in units), default=None)
            older = sum(unit.entries for unit in units if unit.range.layout != queue.layout) if queue.older else None
            rows.append(
                {
                    "queue": queue.id,
                    "sink": queue.sink,
                    "entries": sum(unit.entries for unit in units),
                    "bytes": sum(unit.bytes for unit in units),
                    "ranges": [unit.range.to_json() for unit in units],
                    "oldest": None if oldest is None else seq_time(oldest),
                    "dead": 0 if queue.fans_out else opened.dead_letters.count(queue.id),
                    "first_load": queue.first_load,
                    "in_older_layouts": older,
                    **_marked(found, as_json=as_json),
                }
            )
        if of_store := opened.marks():
            nothing = dict.fromkeys(("queue", "sink", "oldest", "first_load", "in_older_layouts"))
            counts = {"entries": 0, "bytes": 0, "ranges": [], "dead": 0}
            rows.append(nothing | counts | _marked(of_store, as_json=as_json))
    seldom = [
        name
        for name in ("first_load", "in_older_layouts", "incomplete", "marks")
        if all(row[name] is None for row in rows)
    ]
    show(rows, as_json=as_json, hide=("ranges", *seldom))


def _marked(found: list[Mark], *, as_json: bool) -> dict[str, Any]:
    """Show marks in a row of the status."""
    lines = "; ".join(map(Mark.line, found)) or None
    return {
        "incomplete": True if any(mark.is_loss for mark in found) else None,
        "marks": [mark.to_dict() for mark in found] if as_json else lines,
    }


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of a new queue, as :meth:`Store.configure_queue` names them."""

    buckets: Annotated[int, typer.Option(min=1, help="number of buckets; a prime spreads keys well")] = 1009
    buckets_per_range: Annotated[
        int | None, typer.Option(min=1, help="buckets of one unit, which one lock covers; a tenth of the buckets")
    ] = None
    key: Annotated[str, typer.Option(help="codec of keys: str, int, bytes, or module:name")] = "str"
    value: Annotated[str, typer.Option(help="codec of values: json, str, int, bytes, or module:name")] = "json"
    max_value_bytes: Annotated[int, typer.Option(min=1, help="largest encoded value")] = 1 << 20
    exclusive: Annotated[bool, typer.Option("--exclusive", help="make every key added a conflict key")] = False
    coalesce: Annotated[str | None, typer.Option(help="latest: compactions keep only the latest entry of each key")] = (
        None
    )
    subscriptions: Annotated[
        list[str] | None,
        typer.Option("--subscription", metavar="NAME", help="a reader of the queue; one for each of several"),
    ] = None


@command()
def configure(
    queue_id: QueueId,
    store: StoreOptions,
    options: QueueOptions,
    as_json: AsJson = False,
) -> None:
    """Configure a queue; the same options again change nothing, others are refused, with the command that alters it."""
    with store.open() as opened:
        queue = opened.configure_queue(queue_id, **asdict(options))
        readers = opened.subscriptions(queue_id)
    show_one(_options(queue, readers), as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class QueueChanges:
    """The options that change a queue."""

    max_value_bytes: Annotated[int | None, typer.Option(min=1, help="largest encoded value from now on")] = None
    exclusive: Annotated[bool | None, typer.Option(help="whether every key added is a conflict key")] = None
    coalesce: Annotated[str | None, typer.Option(help="latest: compactions keep only the latest entry of each key")] = (
        None
    )
    no_coalesce: Annotated[bool, typer.Option("--no-coalesce", help="compactions keep all entries of a key")] = False
    buckets: Annotated[
        int | None, typer.Option(min=1, help="number of buckets; what waits in the former ones is drained from there")
    ] = None
    buckets_per_range: Annotated[int | None, typer.Option(min=1, help="buckets of one unit; likewise")] = None
    guard: Annotated[
        Literal["seq", "fence"],
        typer.Option(help="guard of the queue's sinks: fence, or seq, with which entries may wait meanwhile"),
    ] = "fence"

    def wanted(self) -> dict[str, Any]:
        """Return the changes, as :meth:`Store.alter_queue` names them."""
        if self.coalesce is not None and self.no_coalesce:
            raise typer.BadParameter("expected one of --coalesce and --no-coalesce")
        names = ("max_value_bytes", "exclusive", "coalesce", "buckets", "buckets_per_range")
        found = {name: getattr(self, name) for name in names} | ({"coalesce": False} if self.no_coalesce else {})
        if all(option is None for option in found.values()):
            raise typer.BadParameter(
                "nothing to alter: give --max-value-bytes, --exclusive, --coalesce, --buckets or --buckets-per-range"
            )
        return found


@command()
def alter(
    queue_id: QueueId,
    store: StoreOptions,
    changes: QueueChanges,
    as_json: AsJson = False,
) -> None:
    """Alter options of a queue that is in use; other processes learn of it within a minute."""
    wanted = changes.wanted()
    with store.open() as opened:
        queue = opened.alter_queue(queue_id, **wanted, guard=changes.guard)
        readers = opened.subscriptions(queue_id)
    show_one(_options(queue, readers), as_json=as_json)


@command()
def subscribe(
    queue_id: QueueId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new reader")],
    store: StoreOptions,
    as_json: AsJson = False,
) -> None:
    """Add a subscription. It receives entries committed from now on. An existing one is left unchanged."""
    with store.open() as opened:
        reader = opened.subscribe(queue_id, name)
    show_one(_subscription(reader), as_json=as_json)


@command()
def unsubscribe(
    queue_id: QueueId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the reader")],
    store: StoreOptions,
    discard: Annotated[
        bool, typer.Option("--discard", help="discard its waiting entries and its dead letters")
    ] = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Remove a subscription permanently. What it has delivered stays in its sink."""
    with store.open() as opened:
        lost = opened.unsubscribe(queue_id, name, discard=discard, who=who)
        left = [reader.id for reader in opened.subscriptions(queue_id)]
    show_one(
        {
            "queue": queue_id,
            "unsubscribed": name,
            "subscriptions": left,
            "entries": lost.entries if lost else 0,
            "dead_letters": lost.dead_letters if lost else 0,
        },
        as_json=as_json,
    )


@command("waive-first-load")
def waive_first_load(
    subscription: Annotated[str, typer.Argument(metavar="QUEUE/NAME", help="id of the subscription")],
    store: StoreOptions,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Declare that a subscription needs nothing of what was committed before it; the store records who did."""
    with store.open() as opened:
        opened.waive_first_load(subscription, who=who)
        reader = opened.queue(subscription)
        lines = [mark.line() for mark in opened.marks(subscription)]
    show_one({**_subscription(reader), "marks": lines}, as_json=as_json)


@command()
def rebind(
    queue_id: QueueId,
    sink: Annotated[str, typer.Argument(metavar="NAME", help="name of the sink, as drains give it")],
    store: StoreOptions,
    complete: Complete = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let a queue drain into another sink, or into the same one with other options, from now on.

    Records in the former sink stay there, and the new place lacks what was drained before: it counts as incomplete.
    """
    with store.open() as opened:
        before = opened.queue(queue_id).sink
        found = opened.rebind(queue_id, sink, complete=complete, who=who)
    show_one(
        {"queue": queue_id, "sink": sink, "before": before, "incomplete": [mark.line() for mark in found]},
        as_json=as_json,
    )


@command("complete")
def declare_complete(
    store: StoreOptions,
    queue_id: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="id of the queue; without it, the store as a whole")
    ] = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Promise that a reader's sink lacks nothing; the promise is recorded, and drains do not call it incomplete.

    Without a queue, the marks of acts on the store as a whole are closed.
    """
    with store.open() as opened:
        closed = opened.declare_complete(queue_id, who=who)
    show_one({"queue": queue_id, "losses": closed}, as_json=as_json)


@command("configure-table")
def configure_table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="name of the table")],
    store: StoreOptions,
    conflict: Annotated[
        Literal["row", "cell", "none"],
        typer.Option(help="what two overlapping transactions must not both write: a row, a cell, or none"),
    ] = "row",
    ttl: Annotated[float | None, typer.Option(help="seconds after which a version counts as deleted")] = None,
    row: Annotated[str, typer.Option(help="codec of rows: bytes, str, int, or module:name")] = "bytes",
    value: Annotated[str, typer.Option(help="codec of values: bytes, str, int, json, or module:name")] = "bytes",
    as_json: AsJson = False,
) -> None:
    """Configure a table before its first use; the same options again change nothing, others are refused."""
    with store.open() as opened:
        table = opened.configure_table(name, conflict=conflict, ttl=ttl, row=row, value=value)
    options = {
        "table": table.name,
        "conflict": table.conflict.value,
        "ttl": None if table.ttl_ms is None else table.ttl_ms / 1000,
        "row": table.row,
        "value": table.value,
    }
    show_one(options, as_json=as_json)


def _options(queue: Queue, readers: Sequence[Queue]) -> dict[str, Any]:
    names = ("buckets", "buckets_per_range", "key", "value", "max_value_bytes", "exclusive", "coalesce", "sink")
    return {
        "queue": queue.id,
        **{name: getattr(queue, name) for name in names},
        "layout": queue.layout,
        "drains_out": [layout.number for layout in queue.older],
        "subscriptions": [reader.id for reader in readers],
    }


def _subscription(reader: Queue) -> dict[str, Any]:
    return {"subscription": reader.id, "queue": reader.parent, "sink": reader.sink, "first_load": reader.first_load}
