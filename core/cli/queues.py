"""``export-queue configure``, ``alter``, ``subscribe`` …: queues, their options and their readers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from export_queue.core.cli.console import Result
from export_queue.core.cli.naming import search_current_folder
from export_queue.core.cli.options import Complete, QueueId, Who, command, one_or_several
from export_queue.core.client import Store
from export_queue.core.progress_bar import ProgressBar
from export_queue.core.queue import Queue
from export_queue.core.sources import AnySource, SqlSource


def readers_of(store: Store, queue_id: str) -> list[Queue]:
    """Return the readers of a queue: its subscriptions, or the queue or subscription itself."""
    return store.subscriptions(queue_id) or [store.queue(queue_id)]


def hidden_reader(queue_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the reader's column if all rows belong to the requested queue itself, so that a table leaves it out."""
    return ("queue",) if all(row["queue"] == queue_id for row in rows) else ()


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of a new queue, named as in :meth:`Store.configure_queue`."""

    buckets: Annotated[int, typer.Option(min=1, help="number of buckets; a prime spreads keys well")] = 1009
    buckets_per_range: Annotated[
        int | None, typer.Option(min=1, help="buckets in a unit, which one lock covers; by default a tenth of all")
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
        typer.Option("--subscription", metavar="NAME", help="a reader of the queue; repeat it for each reader"),
    ] = None
    state: Annotated[bool, typer.Option("--state", help="remember the latest entry of each key")] = False
    history: Annotated[
        str | None, typer.Option(help="how long the state keeps former values, such as 7d; by default 1h")
    ] = None


@command()
def configure(queue_id: QueueId, store: Store, options: QueueOptions) -> dict[str, Any]:
    """Configure a queue. The same options again change nothing; others are refused, see the command alter."""
    return _options(store.configure_queue(queue_id, **asdict(options)), store)


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
        int | None, typer.Option(min=1, help="number of buckets; pending entries are drained from the previous buckets")
    ] = None
    buckets_per_range: Annotated[int | None, typer.Option(min=1, help="buckets in a unit; likewise")] = None
    state: Annotated[
        bool | None,
        typer.Option(help="whether to remember the latest entry of each key; --no-state deletes it"),
    ] = None
    history: Annotated[str | None, typer.Option(help="how long the state keeps former values, such as 7d")] = None
    guard: Annotated[
        Literal["seq", "fence"],
        typer.Option(help="guard of the queue's sinks: fence, or seq, which allows pending entries meanwhile"),
    ] = "fence"

    def wanted(self) -> dict[str, Any]:
        """Return the changes, named as in :meth:`Store.alter_queue`."""
        if self.coalesce is not None and self.no_coalesce:
            raise typer.BadParameter("expected one of --coalesce and --no-coalesce, found both")
        names = ("max_value_bytes", "exclusive", "coalesce", "buckets", "buckets_per_range", "state", "history")
        found = {name: getattr(self, name) for name in names} | ({"coalesce": False} if self.no_coalesce else {})
        if all(option is None for option in found.values()):
            raise typer.BadParameter(
                "nothing to alter: give --max-value-bytes, --exclusive, --coalesce, --buckets, --buckets-per-range, "
                "--state or --history"
            )
        return found


@command()
def alter(queue_id: QueueId, store: Store, changes: QueueChanges) -> dict[str, Any]:
    """Alter options of a queue that is in use; other processes see the change within a minute."""
    return _options(store.alter_queue(queue_id, **changes.wanted(), guard=changes.guard), store)


@command()
def subscribe(
    queue_id: QueueId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the new reader")],
    store: Store,
) -> dict[str, Any]:
    """Add a subscription. It receives entries committed from now on. An existing one is left unchanged."""
    return _subscription(store.subscribe(queue_id, name))


@command()
def unsubscribe(
    queue_id: QueueId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the reader")],
    store: Store,
    discard: Annotated[
        bool, typer.Option("--discard", help="discard its pending entries and its dead letters")
    ] = False,
    who: Who = None,
) -> dict[str, Any]:
    """Remove a subscription permanently. What it has delivered stays in its sink."""
    lost = store.unsubscribe(queue_id, name, discard=discard, who=who)
    return {
        "queue": queue_id,
        "unsubscribed": name,
        "subscriptions": [reader.id for reader in store.subscriptions(queue_id)],
        "entries": lost.entries if lost else 0,
        "dead_letters": lost.dead_letters if lost else 0,
    }


@dataclass(frozen=True, kw_only=True)
class LoadSource:
    """Where the content of a first load comes from."""

    source: Annotated[
        str,
        typer.Option(
            help="state, table:NAME of a table of the store, or MODULE:NAME of a function that yields keys and values "
            "or of a source"
        ),
    ] = "state"
    query: Annotated[str | None, typer.Option(help="instead, a SQL query in the store's own database")] = None
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="a column of the key; repeat it for each column; by default key and value"),
    ] = None
    value: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="a column of the value; repeat it for several; by default all columns"),
    ] = None

    def source_or_query(self) -> AnySource:
        """Return the source."""
        if self.query is None:
            if self.key or self.value:
                raise typer.BadParameter("--key and --value are for --query, found none")
            return self.source
        if self.source != "state":
            raise typer.BadParameter("what source? give either --source or --query")
        return SqlSource(self.query, key=one_or_several(self.key), value=one_or_several(self.value))


@command("first-load")
def first_load(
    subscription: Annotated[str, typer.Argument(metavar="QUEUE/NAME", help="id of the subscription")],
    store: Store,
    chosen: LoadSource,
    settle_timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for older transactions to end")] = 60.0,
) -> Result:
    """Add everything that was committed before a subscription existed, from a source. Repeat it if it was killed."""
    search_current_folder()
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(ProgressBar(console, subscription)) if console.is_terminal else None
        report = store.first_load(
            subscription,
            source=chosen.source_or_query(),
            settle_timeout=settle_timeout,
            on_progress=None if bar is None else lambda entries: bar.show(done=entries, remark="entries"),
        )
    return Result(json=report.to_json(), lines=[report.line()])


@command("waive-first-load")
def waive_first_load(
    subscription: Annotated[str, typer.Argument(metavar="QUEUE/NAME", help="id of the subscription")],
    store: Store,
    who: Who = None,
) -> dict[str, Any]:
    """Declare that a subscription needs nothing that was committed before it. The store records who declared it."""
    store.waive_first_load(subscription, who=who)
    lines = [mark.line() for mark in store.marks(subscription)]
    return {**_subscription(store.queue(subscription)), "marks": lines}


@command()
def rebind(
    queue_id: QueueId,
    sink: Annotated[str, typer.Argument(metavar="NAME", help="name of the sink, as drains give it")],
    store: Store,
    complete: Complete = False,
    who: Who = None,
) -> dict[str, Any]:
    """Let a queue drain into another sink, or into the same one with other options, from now on.

    Records in the previous sink stay there. The new sink lacks what was drained before, so it counts as incomplete.
    """
    before = store.queue(queue_id).sink
    lines = [mark.line() for mark in store.rebind(queue_id, sink, complete=complete, who=who)]
    return {"queue": queue_id, "sink": sink, "before": before, "incomplete": lines}


@command("complete")
def declare_complete(
    store: Store,
    queue_id: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="id of the queue; without it, the whole store")
    ] = None,
    who: Who = None,
) -> dict[str, Any]:
    """Promise that a reader's sink lacks nothing. The store records the promise; drains no longer report a loss.

    Without a queue, the marks of the whole store are closed.
    """
    return {"queue": queue_id, "losses": store.declare_complete(queue_id, who=who)}


@command("configure-table")
def configure_table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="name of the table")],
    store: Store,
    conflict: Annotated[
        Literal["row", "cell", "none"],
        typer.Option(help="what two overlapping transactions must not both write: a row, a cell, or none"),
    ] = "row",
    ttl: Annotated[float | None, typer.Option(help="seconds after which a version counts as deleted")] = None,
    row: Annotated[str, typer.Option(help="codec of rows: bytes, str, int, or module:name")] = "bytes",
    value: Annotated[str, typer.Option(help="codec of values: bytes, str, int, json, or module:name")] = "bytes",
) -> dict[str, Any]:
    """Configure a table before its first use. The same options again change nothing; others are refused."""
    table = store.configure_table(name, conflict=conflict, ttl=ttl, row=row, value=value)
    return {
        "table": table.name,
        "conflict": table.conflict.value,
        "ttl": None if table.ttl_ms is None else table.ttl_ms / 1000,
        "row": table.row,
        "value": table.value,
    }


def _options(queue: Queue, store: Store) -> dict[str, Any]:
    names = ("buckets", "buckets_per_range", "key", "value", "max_value_bytes", "exclusive", "coalesce", "sink")
    return {
        "queue": queue.id,
        **{name: getattr(queue, name) for name in names},
        "layout": queue.layout,
        "state": queue.history_ms is not None,
        "history": None if queue.history_ms is None else queue.history_ms / 1000,
        "drains_out": [layout.number for layout in queue.older],
        "subscriptions": [reader.id for reader in store.subscriptions(queue.id)],
    }


def _subscription(reader: Queue) -> dict[str, Any]:
    return {"subscription": reader.id, "queue": reader.parent, "sink": reader.sink, "first_load": reader.first_load}
