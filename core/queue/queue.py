"""A queue as a value: its options, its layouts, and the codecs of its keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from export_queue.core.codecs import KEYS, MAX_KEY_BYTES, VALUES, Refused, find_codec, raise_undecodable
from export_queue.core.errors import EntryError
from export_queue.core.queue.buckets import Layout, Range
from export_queue.core.transactions import Snapshot

STATE = "@state"
"""Name of the reader that is the state of its queue. No subscription can have it."""
_SHOWN = 60
"""Maximum length of a refused key in an error."""
_LARGEST_SHOWN = 1 << 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue as it is stored."""

    id: str
    number: int
    layout: int
    """Number of its current layout; each change of buckets starts the next one."""
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
    """Name of its sink."""
    binding: str | None = None
    """The options of sink and exporter that determine the written records, as JSON; None before the first drain."""
    parent: str | None = None
    """For a subscription: the id of its queue."""
    fans_out: bool = False
    """Whether it has subscriptions. Then these hold the entries, and the queue itself has none."""
    first_load: Literal["missing", "made", "waived"] | None = None
    """For a subscription added after its queue: whether it received what was committed before."""
    parent_number: int | None = None
    """For a subscription: the number of its queue."""
    coalesce: str | None = None
    """Which entries of a key a compaction keeps: ``latest``, or None for all."""
    history_ms: int | None = None
    """For a queue with a state, and for that state: how long former values are kept; None without a state."""
    oldest_cut: int | None = None
    """For a state: it cannot be read as of an older id."""
    older: tuple[Layout, ...] = ()
    """Earlier layouts that may still have pending entries; oldest first."""

    @property
    def name(self) -> str:
        """The last part of its id; for a subscription its name."""
        return self.id.rpartition("/")[2]

    @property
    def is_state(self) -> bool:
        """Whether it is the state of its queue: a reader that is never drained."""
        return self.parent is not None and self.history_ms is not None

    @property
    def source(self) -> str:
        """The id of the queue to which entries are added; sinks identify records by it."""
        return self.parent or self.id

    @property
    def source_number(self) -> int:
        """The number of the queue to which entries are added."""
        return self.number if self.parent_number is None else self.parent_number

    def layouts(self) -> tuple[Layout, ...]:
        """List the layouts that may have pending entries, the current one last."""
        return *self.older, Layout(self.layout, self.buckets, self.buckets_per_range)

    def units(self) -> list[Range]:
        """List the units of the current layout. One lock covers one unit."""
        return self.layouts()[-1].units()

    def open_units(self) -> list[Range]:
        """List the units that may have pending entries, those of older layouts first."""
        return [unit for layout in self.layouts() for unit in layout.units()]

    def in_layout(self, number: int) -> Queue:
        """Return this queue restricted to one layout, given by number."""
        (found,) = (layout for layout in self.layouts() if layout.number == number)
        return self.laid_out_as(found)

    def laid_out_as(self, layout: Layout) -> Queue:
        """Return this queue restricted to one layout."""
        buckets, size = layout.buckets, layout.buckets_per_range
        return replace(self, layout=layout.number, buckets=buckets, buckets_per_range=size, older=())

    def by_layout(self, units: Iterable[Range]) -> list[tuple[Queue, list[Range]]]:
        """Group units by layout, oldest first, each group with the queue restricted to its layout."""
        ordered = sorted(units)
        if not self.older and all(unit.layout == self.layout for unit in ordered):
            return [(self, ordered)] if ordered else []
        found: dict[int, list[Range]] = {}
        for unit in ordered:
            found.setdefault(unit.layout, []).append(unit)
        return [(self.in_layout(number), of_layout) for number, of_layout in found.items()]

    def encode_key(self, key: Any) -> bytes:
        """Encode a key.

        :raises EntryError: the key has another type, or is empty or too long.
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
        """Encode a value. None stays None and deletes the record.

        :raises EntryError: the value has another type or is too large.
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
        """Decode a value, or raise :class:`CodecError` with the key. None stays None."""
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


def oldest_kept(queue: Queue, settled: Snapshot, now_ms: int) -> int | None:
    """Return the id from which on a state must stay readable, by its history; None for a queue that is drained.

    :param settled: no later commit can add to it.
    :param now_ms: the store's clock.
    """
    if queue.history_ms is None or not queue.is_state:
        return None
    return max(0, min(settled.read_pointer, (now_ms - queue.history_ms) * 1_000_000))


def _shown(key: object) -> str:
    """Show a refused key without calling its methods: text, bytes and numbers shortened; only the type of others.

    It may be a value passed as a key by mistake, so little of it is shown.
    """
    if isinstance(key, str):
        text = str.__getitem__(key, slice(_SHOWN))
        return ascii(text) + ("…" if str.__len__(key) > _SHOWN else "")
    if isinstance(key, bytes):
        return ascii(bytes(memoryview(key)[:_SHOWN])) + ("…" if bytes.__len__(key) > _SHOWN else "")
    if type(key) in (int, float, bool) and not abs(cast(float, key)) > _LARGEST_SHOWN:
        return repr(key)
    return f"of type {type(key).__name__}"
