"""The stored options of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from export_queue.core.codecs import KEYS, MAX_KEY_BYTES, VALUES, Refused, check_codec, find_codec, raise_undecodable
from export_queue.core.errors import EntryError, InvalidArgument, OptionsDiffer, SinkBindingError, UnknownQueue
from export_queue.core.queue.buckets import Range, split, units_of
from export_queue.core.store import Database, Reading, Work, queries
from export_queue.core.tables import check_name

FIRST_LAYOUT = 1
MAX_BUCKETS = 1_000_000
MAX_VALUE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue as it is stored."""

    id: str
    number: int
    layout: int
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

    def units(self) -> list[Range]:
        """List the units: what one lock covers."""
        return units_of(self.buckets, self.buckets_per_range)

    def split(self, ranges: Iterable[Range | Sequence[int]] | None) -> list[Range]:
        """Cut ranges into units; None means all.

        :raises InvalidArgument: a range is not whole units.
        """
        return self.units() if ranges is None else split(ranges, self.buckets, self.buckets_per_range)

    def encode_key(self, key: Any) -> bytes:
        """Encode a key.

        :raises EntryError: the key is of another type, empty or too long.
        """
        try:
            encoded = find_codec(self.key, KEYS).encode(key)
        except Refused as refused:
            raise EntryError(f"queue {self.id!r}: key {key!a}: {refused.message}", hint=refused.hint) from refused
        if not 1 <= len(encoded) <= MAX_KEY_BYTES:
            raise EntryError(f"key: expected 1 to {MAX_KEY_BYTES} bytes, found {len(encoded)}: {str(key)[:60]!r}…")
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
                hint="configure the queue with a larger max_value_bytes, or add a reference instead of the content",
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
    :raises InvalidArgument: an option is out of bounds.
    :raises CodecError: an import path leads to no codec.
    :raises OptionsDiffer: the queue exists with other options, which are listed.
    """
    check_name("queue id", queue_id)
    check_codec("key", key, KEYS)
    check_codec("value", value, VALUES)
    _check_number("buckets", buckets, MAX_BUCKETS)
    if buckets_per_range is None:
        buckets_per_range = -(-buckets // 10)
    _check_number("buckets_per_range", buckets_per_range, buckets)
    _check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    wanted = {
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
        "key_codec": key,
        "value_codec": value,
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
    }
    with database.read() as work:
        row = queries.queues.queue_row(work, queue_id)
    if row is None:
        with database.begin() as work:
            queries.queues.add_queue(work, {"id": queue_id, "layout": FIRST_LAYOUT, "sink": None, **wanted})
            row = queries.queues.queue_row(work, queue_id)
    assert row is not None
    differences = [
        f"{name.removesuffix('_codec')}: expected {wanted[name]!r}, found {row[name]!r}"
        for name in wanted
        if row[name] != wanted[name]
    ]
    if differences:
        raise OptionsDiffer(f"queue {queue_id!r} exists with other options: {'; '.join(differences)}")
    return _queue(row)


def _check_number(name: str, number: int, most: int) -> None:
    if type(number) is not int or not 1 <= number <= most:
        raise InvalidArgument(f"{name}: expected a whole number from 1 to {most}, found {number!r}")


def _queue(row: Any) -> Queue:
    renamed = {"key": "key_codec", "value": "value_codec"}
    return Queue(**{f.name: row[renamed.get(f.name, f.name)] for f in fields(Queue)})


def find_queue(work: Reading, queue_id: str) -> Queue:
    """Read a queue's options.

    :raises UnknownQueue: there is no such queue; the error names those that there are.
    """
    row = queries.queues.queue_row(work, queue_id)
    if row is None:
        known = ", ".join(q.id for q in list_queues(work)) or "none"
        raise UnknownQueue(f"the store has no queue {queue_id!r}; it has: {known}")
    return _queue(row)


def list_queues(work: Reading) -> list[Queue]:
    """Read all queues, by name."""
    return [_queue(row) for row in queries.queues.queue_rows(work)]


def bind_sink(work: Work, queue: Queue, sink: str, *, rebind: bool = False) -> None:
    """Bind a queue to the name of the sink that it drains into.

    :param rebind: change the name although the queue has another one.
    :raises SinkBindingError: the queue drains into another sink.
    """
    if queue.sink == sink:
        return
    queries.queues.bind_queue(work, queue.number, sink, rebind=rebind)
    found = find_queue(work, queue.id).sink
    if found != sink:
        raise SinkBindingError(f"queue {queue.id!r} drains into sink {found!r}, found a drain into {sink!r}")
