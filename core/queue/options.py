"""The stored options of a queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from export_queue.core.arguments import check_text
from export_queue.core.codecs import KEYS, MAX_KEY_BYTES, VALUES, Refused, check_codec, find_codec, raise_undecodable
from export_queue.core.errors import (
    EntryError,
    HasSubscriptions,
    InvalidArgument,
    OptionsDiffer,
    SinkBindingError,
    UnknownQueue,
)
from export_queue.core.queue.buckets import FIRST_LAYOUT, Layout, Range
from export_queue.core.references import check_sink_name
from export_queue.core.store import Database, Reading, Work, queries, removed_subscription
from export_queue.core.tables import check_name

MAX_BUCKETS = 1_000_000
LATEST = "latest"
"""Value of the option ``coalesce``: compactions keep only the latest entry of each key."""
MAX_VALUE_BYTES = 64 << 20
FIXED = ("key", "value")
"""Options of a queue that cannot be altered: every entry, stored or on its way, was made by them."""
_SHOWN = 60
"""Characters or bytes of a refused key that an error shows."""
_LARGEST_SHOWN = 1 << 128
log = logging.getLogger("export_queue.queue")
_DERIVED = ("parent", "parent_number", "older")
"""Fields of a queue that are no columns of these names."""
_COLUMNS = {"key": "key_codec", "value": "value_codec"}
"""Columns of the options that are stored under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue as it is stored."""

    id: str
    number: int
    layout: int
    """The number of its current layout; each re-bucketing gives it the next one."""
    buckets: int
    buckets_per_range: int
    key: str
    """The keys' codec: ``str``, ``int``, ``bytes`` or an import path."""
    value: str
    """The values' codec: ``json``, ``str``, ``int``, ``bytes`` or an import path."""
    max_value_bytes: int
    exclusive: bool
    """Whether every key added is a conflict key."""
    sink: str | None
    """Name of the sink into which it drains."""
    binding: str | None = None
    """The options of sink and exporter that decide which record is written, as JSON; None before the first drain."""
    parent: str | None = None
    """Of a subscription: the id of the queue whose entries it gets."""
    fans_out: bool = False
    """Whether it has subscriptions: they have its entries, and it has none of its own."""
    first_load: Literal["missing", "made", "waived"] | None = None
    """Of a subscription that came later than its queue: whether it was given what had been committed before."""
    parent_number: int | None = None
    """Of a subscription: the number of that queue."""
    coalesce: str | None = None
    """What a compaction makes of several entries of a key: see :mod:`.coalescing`."""
    older: tuple[Layout, ...] = ()
    """Layouts that it had before the current one, and in which entries may still wait; oldest first."""

    @property
    def name(self) -> str:
        """The last part of its id: of a subscription its name."""
        return self.id.rpartition("/")[2]

    @property
    def source(self) -> str:
        """The id of the queue that is added to: sinks know records by it."""
        return self.parent or self.id

    @property
    def source_number(self) -> int:
        """The number of the queue that is added to."""
        return self.number if self.parent_number is None else self.parent_number

    def layouts(self) -> tuple[Layout, ...]:
        """List the layouts in which entries may wait, the current one last."""
        return *self.older, Layout(self.layout, self.buckets, self.buckets_per_range)

    def units(self) -> list[Range]:
        """List the units of the current layout: what one lock covers."""
        return self.layouts()[-1].units()

    def open_units(self) -> list[Range]:
        """List the units in which entries may wait, those of older layouts first."""
        return [unit for layout in self.layouts() for unit in layout.units()]

    def in_layout(self, number: int) -> Queue:
        """Return the queue as it is to those who work in one of its layouts, which has no other one."""
        (found,) = (layout for layout in self.layouts() if layout.number == number)
        return self.laid_out_as(found)

    def laid_out_as(self, layout: Layout) -> Queue:
        """Return the queue in a layout, and in no other one."""
        return replace(
            self,
            layout=layout.number,
            buckets=layout.buckets,
            buckets_per_range=layout.buckets_per_range,
            older=(),
        )

    def by_layout(self, units: Iterable[Range]) -> list[tuple[Queue, list[Range]]]:
        """Group units by their layouts, oldest first, each with the queue in it."""
        ordered = sorted(units)
        if not self.older and all(unit.layout == self.layout for unit in ordered):
            return [(self, ordered)] if ordered else []
        found: dict[int, list[Range]] = {}
        for unit in ordered:
            found.setdefault(unit.layout, []).append(unit)
        return [(self.in_layout(number), of_layout) for number, of_layout in found.items()]

    def encode_key(self, key: Any) -> bytes:
        """Encode a key.

        :raises EntryError: the key is of another type, empty or too long.
        """
        try:
            encoded = find_codec(self.key, KEYS).encode(key)
        except Refused as refused:
            raise EntryError(f"queue {self.id!r}: key {_shown(key)}: {refused.message}", hint=refused.hint) from refused
        if not 1 <= len(encoded) <= MAX_KEY_BYTES:
            raise EntryError(f"key: expected 1 to {MAX_KEY_BYTES} bytes, found {len(encoded)}: {_shown(key)}")
        return encoded

    def decode_key(self, key: bytes) -> Any:
        """Decode a key, or raise :class:`CodecError`."""
        codec = find_codec(self.key, KEYS)
        try:
            return codec.decode(key)
        except Exception as error:
            raise_undecodable(codec, key, f"queue {self.id!r}: key {key!r}", error)

    def encode_value(self, value: Any, *, key: Any) -> bytes | None:
        """Encode a value; None stays None and means: the record is gone.

        :raises EntryError: the value is of another type or too large.
        """
        if value is None:
            return None
        try:
            encoded = find_codec(self.value, VALUES).encode(value)
        except Refused as refused:
            problem = f"queue {self.id!r}: value of key {key!r}: {refused.message}"
            raise EntryError(problem, hint=refused.hint) from refused
        if len(encoded) > self.max_value_bytes:
            raise EntryError(
                f"value of key {key!r}: expected at most {self.max_value_bytes} bytes, found {len(encoded)}",
                hint="give the queue a larger max_value_bytes (export-queue alter QUEUE --max-value-bytes …), "
                "or add a reference instead of the content",
            )
        return encoded

    def decode_value(self, value: bytes | None, *, key: object = None) -> Any:
        """Decode a value, or raise :class:`CodecError`, which names the key; None stays None."""
        if value is None:
            return None
        codec = find_codec(self.value, VALUES)
        try:
            return codec.decode(value)
        except Exception as error:
            raise_undecodable(codec, value, f"queue {self.id!r}: value of key {key!r}", error)

    def load_codecs(self) -> None:
        """Find both codecs.

        :raises CodecError: an import path leads to no codec.
        """
        find_codec(self.key, KEYS)
        find_codec(self.value, VALUES)


def configure_queue(
    database: Database,
    queue_id: str,
    *,
    buckets: int = 1009,
    buckets_per_range: int | None = None,
    key: str = "str",
    value: str = "json",
    max_value_bytes: int = 1 << 20,
    exclusive: bool = False,
    coalesce: str | None = None,
    subscriptions: Sequence[str] | None = None,
) -> Queue:
    """Store a queue's options; the same options again change nothing.

    :param queue_id: 1–64 characters of ``a-z 0-9 _ . -``.
    :param buckets: number of buckets; a prime spreads keys well.
    :param buckets_per_range: buckets of one unit: what one lock, and at most one task at a time, works on; by default
        a tenth of the buckets, so that there are ten units.
    :param key: codec of keys: ``str``, ``int``, ``bytes``, or the import path ``module:name`` of an object with
        ``encode(value) -> bytes`` and ``decode(bytes) -> value``.
    :param value: codec of values: ``json``, ``str``, ``int``, ``bytes``, or an import path.
    :param max_value_bytes: largest encoded value.
    :param exclusive: make every key a conflict key, for keys that are not tied to a cell that the transaction writes.
    :param coalesce: what a compaction keeps of the entries of a key that it merges: ``latest`` keeps the one with the
        highest sequence, None keeps all.
    :param subscriptions: names of the readers that a new queue has, each of which gets every entry; None says nothing
        about them.
    :raises InvalidArgument: an option is out of bounds.
    :raises CodecError: an import path leads to no codec.
    :raises OptionsDiffer: the queue exists with other options, which are listed. Buckets and units that it had before
        it was altered are only warned of.
    """
    check_name("queue id", queue_id)
    check_codec("key", key, KEYS)
    check_codec("value", value, VALUES)
    check_number("buckets", buckets, MAX_BUCKETS)
    if buckets_per_range is None:
        buckets_per_range = -(-buckets // 10)
    check_number("buckets_per_range", buckets_per_range, buckets)
    check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    check_coalesce(coalesce)
    wanted = {
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
        "key": key,
        "value": value,
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
        "coalesce": coalesce,
    }
    names = None if subscriptions is None else check_names(subscriptions)
    with database.read() as work:
        row = queries.queues.queue_row(work, queue_id)
    if row is None:
        with database.begin() as work:
            stored = {_COLUMNS.get(name, name): option for name, option in wanted.items()}
            added = queries.queues.add_queue(work, {"id": queue_id, "layout": FIRST_LAYOUT, "sink": None, **stored})
            if added and names:
                # Nobody can have added to it: its readers lack nothing.
                parent = find_queue(work, queue_id)
                queries.readers.begin_fan_out(work, parent.number)
                for name in names:
                    add_reader(work, parent, name, first_load=None)
            row = queries.queues.queue_row(work, queue_id)
    assert row is not None
    with database.read() as work:
        found = _queue(work, row)
        former = queries.layouts.former(work, found.source_number, before=found.layout)
    laid_out, now = (buckets, buckets_per_range), (found.buckets, found.buckets_per_range)
    if laid_out != now and laid_out in [layout[1:] for layout in former]:
        log.warning(
            "queue %r has had %d buckets, %d a unit, and stays as it was altered since: %d, %d a unit",
            queue_id,
            *laid_out,
            *now,
        )
        del wanted["buckets"], wanted["buckets_per_range"]
    differing = {name: option for name, option in wanted.items() if getattr(found, name) != option}
    if differing:
        listed = (f"{name}: expected {option!r}, found {getattr(found, name)!r}" for name, option in differing.items())
        raise OptionsDiffer(
            f"queue {queue_id!r} exists with other options: {'; '.join(listed)}", hint=_remedy(queue_id, differing)
        )
    if names is not None:
        _compare_names(database, found, names)
    return found


def check_coalesce(coalesce: object) -> None:
    """Check the option ``coalesce`` before it is stored.

    :raises InvalidArgument: it is neither None nor ``latest``.
    """
    if coalesce is not None and coalesce != LATEST:
        raise InvalidArgument(f"coalesce: expected {LATEST!r} or None, found {coalesce!r}")


def check_names(subscriptions: Sequence[str]) -> list[str]:
    """Check the names of a queue's subscriptions.

    :raises InvalidArgument: one is no name, or is given twice.
    """
    if isinstance(subscriptions, str):
        raise InvalidArgument(f"subscriptions: expected a list of names, found {subscriptions!r}")
    names = sorted(check_name("subscription", name) for name in subscriptions)
    if len(set(names)) < len(names):
        raise InvalidArgument(f"subscriptions: expected each name once, found {names}")
    return names


def _compare_names(database: Database, queue: Queue, wanted: list[str]) -> None:
    with database.read() as work:
        found = sorted(reader.name for reader in readers_of(work, queue))
    if found != wanted:
        raise OptionsDiffer(
            f"queue {queue.id!r} exists with other subscriptions: expected {wanted}, found {found}",
            hint="add one by store.subscribe(queue_id, name), remove one by store.unsubscribe(queue_id, name); on the "
            f"command line: export-queue subscribe {queue.id} NAME, export-queue unsubscribe {queue.id} NAME",
        )


def add_reader(work: Work, parent: Queue, name: str, *, first_load: str | None) -> None:
    """Store a subscription; its options are those of its queue, and it drains into a sink of its own."""
    queries.queues.add_queue(
        work,
        {
            "id": f"{parent.id}/{name}",
            "parent": parent.number,
            "layout": parent.layout,
            "buckets": parent.buckets,
            "buckets_per_range": parent.buckets_per_range,
            "key_codec": parent.key,
            "value_codec": parent.value,
            "max_value_bytes": parent.max_value_bytes,
            "exclusive": parent.exclusive,
            "coalesce": parent.coalesce,
            "sink": None,
            "first_load": first_load,
        },
    )


def _remedy(queue_id: str, differing: Mapping[str, Any]) -> str:
    """Say how a queue gets the options that were asked for."""
    if fixed := [name for name in differing if name in FIXED]:
        named = " and ".join(fixed)
        return f"{named} of a queue cannot be altered: ask for the stored options, or configure another queue"
    flags = " ".join(
        f"--{'no-' if option in (False, None) else ''}{name.replace('_', '-')}"
        + ("" if option is None or isinstance(option, bool) else f" {option}")
        for name, option in differing.items()
    )
    return f"ask for the stored options, or alter the queue: export-queue alter {queue_id} {flags} --store …"


def _shown(key: object) -> str:
    """Show a key that is refused, by no method of its own: text, bytes and numbers shortened, of all else the type.

    What is no key may be a value in its place.
    """
    if isinstance(key, str):
        text = str.__getitem__(key, slice(_SHOWN))
        return ascii(text) + ("…" if str.__len__(key) > _SHOWN else "")
    if isinstance(key, bytes):
        return ascii(bytes(memoryview(key)[:_SHOWN])) + ("…" if bytes.__len__(key) > _SHOWN else "")
    if type(key) in (int, float, bool) and not abs(cast(float, key)) > _LARGEST_SHOWN:
        return repr(key)
    return f"of type {type(key).__name__}"


def check_number(name: str, number: int, most: int) -> None:
    """Check an option that is a number.

    :raises InvalidArgument: it is none from 1 to the most.
    """
    if type(number) is not int or not 1 <= number <= most:
        raise InvalidArgument(f"{name}: expected a whole number from 1 to {most}, found {number!r}")


def _queue(work: Reading, row: Any) -> Queue:
    stored = {f.name: row[_COLUMNS.get(f.name, f.name)] for f in fields(Queue) if f.name not in _DERIVED}
    queue = Queue(**stored, parent=parent_of(row["id"]), parent_number=row["parent"])
    if queue.layout == FIRST_LAYOUT:
        return queue
    older = queries.layouts.open_ones(work, queue.source_number, before=queue.layout)
    return replace(queue, older=tuple(Layout(*found) for found in older))


def parent_of(queue_id: str) -> str | None:
    """Tell the queue of a subscription by its id; None for the id of a queue."""
    parent, slash, _ = queue_id.partition("/")
    return parent if slash else None


def find_queue(work: Reading, queue_id: str) -> Queue:
    """Read the options of a queue, or of a subscription: ``airports/search``.

    :raises UnknownQueue: there is no such queue; the error names those that there are.
    """
    check_text(queue_id, what="queue id")
    row = queries.queues.queue_row(work, queue_id)
    if row is None:
        known = [q.id for q in list_queues(work)]
        parent, _, name = queue_id.partition("/")
        if name and parent in known:
            raise unknown_subscription(parent, name, [q for q in known if parent_of(q) == parent])
        raise UnknownQueue(f"the store has no queue {queue_id!r}; it has: {', '.join(known) or 'none'}")
    return _queue(work, row)


def unknown_subscription(queue_id: str, name: str, known: Iterable[str]) -> UnknownQueue:
    """Build the error of work for a subscription that a queue does not have.

    :param known: the names of those that it has.
    """
    return UnknownQueue(
        f"queue {queue_id!r} has no subscription {name!r}; it has: {', '.join(known) or 'none'}",
        hint=f"to add one: export-queue subscribe {queue_id} NAME, or store.subscribe({queue_id!r}, name)",
    )


def find_reader(work: Reading, queue_id: str) -> Queue:
    """Read the options of a queue without subscriptions, or of a subscription: entries wait there for a drain.

    :raises UnknownQueue: there is no such queue.
    :raises HasSubscriptions: they have its entries; the error names them.
    """
    queue = find_queue(work, queue_id)
    if queue.fans_out:
        names = ", ".join(reader.id for reader in readers_of(work, queue))
        raise HasSubscriptions(
            f"queue {queue_id!r} has no entries of its own: each of its subscriptions has them: {names}",
            hint=f"name one of them instead of {queue_id!r}",
        )
    return queue


def readers_of(work: Reading, queue: Queue) -> list[Queue]:
    """Read the subscriptions of a queue, by name."""
    return [_queue(work, row) for row in queries.readers.reader_rows(work, queue.number)]


def list_queues(work: Reading) -> list[Queue]:
    """Read all queues and subscriptions, by name."""
    return [_queue(work, row) for row in queries.queues.queue_rows(work)]


def bind_sink(work: Work, queue: Queue, sink: str, *, rebind: bool = False) -> None:
    """Bind a queue to the name of the sink that it drains into.

    :param rebind: change the name although the queue has another one.
    :raises SinkBindingError: the queue drains into another sink.
    :raises UnknownQueue: it is a subscription that was removed, perhaps with a new one of its name.
    :raises InvalidArgument: no sink can have the name.
    """
    if queue.sink == sink and not rebind:
        return
    check_sink_name(sink)
    queries.queues.bind_queue(work, queue.number, sink, rebind=rebind)
    found = find_queue(work, queue.id)
    if found.number != queue.number:
        raise removed_subscription(f"subscription {queue.id!r}")
    if found.sink != sink:
        raise SinkBindingError(f"queue {queue.id!r} drains into sink {found.sink!r}, found a drain into {sink!r}")
