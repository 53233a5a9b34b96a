"""What the entries of a source should be in a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from export_queue.core.drain import COPY, Exporter
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Entries, Queue
from export_queue.core.sinks import FencedSink, Operations, ScannableSink, Sink, StoredRecords, collapse


@dataclass(frozen=True, slots=True)
class Refused:
    """Entries that the exporter or the sink refuses."""

    keys: Sequence[tuple[bytes, int]]
    """Their keys and ranks."""
    records: StoredRecords
    """The records that deletes of these keys would name, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The records that a page of entries names."""

    records: StoredRecords
    keys: Sequence[bytes]
    """The key of the entry that names each."""
    expires: Sequence[bool] | None
    """Whether each document has a time to live; None if none has."""
    collections: set[str]
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class Renderer:
    """Makes records of entries as the drains of a reader do.

    :param sink: a sink that can be compared.
    :param is_ranked: whether ranks are compared.
    """

    reader: Queue
    sink: Sink | FencedSink
    exporter: Exporter
    is_ranked: bool

    @property
    def copies(self) -> bool:
        """Whether the id of a record is the key of its entry."""
        return self.exporter.identity == COPY

    @property
    def _scannable(self) -> ScannableSink:
        return cast(ScannableSink, self.sink)

    def of_entries(self, page: Entries) -> Rendered:
        """Return the records that entries name, each key once."""
        exported = self.exporter.export(self.reader, page)
        operations = exported.operations
        if self.is_ranked and not self.copies:  # each key comes once
            operations, _ = collapse(operations)
        records, positions = self._scannable.render(operations)
        keys = records.ids if self.copies else [page.keys[operations.entries[i]] for i in positions]
        refused = set(exported.failures)
        if len(positions) < len(operations):
            refused |= {operations.entries[i] for i in set(range(len(operations))) - set(positions)}
        return Rendered(
            records,
            keys,
            _expires(operations, positions),
            set(operations.collections),
            self._refused(page, sorted(refused)) if refused else None,
        )

    def of_named(self, operations: Operations, source_name: str) -> Rendered:
        """Return the records that a user's function yields; none has a key.

        :raises InvalidArgument: the sink does not store one of them.
        """
        records, positions = self._scannable.render(operations)
        if len(positions) < len(operations):
            at = min(set(range(len(operations))) - set(positions))
            raise InvalidArgument(
                f"{source_name} yields a record that the sink does not store: "
                f"{operations.collections[at]} {operations.ids[at]!r}"
            )
        keys = [b""] * len(records)
        return Rendered(records, keys, _expires(operations, positions), set(operations.collections))

    def _refused(self, page: Entries, positions: Sequence[int]) -> Refused:
        buckets, keys = [page.buckets[i] for i in positions], [page.keys[i] for i in positions]
        deletes = Entries(buckets, keys, [page.seqs[i] for i in positions], [None] * len(positions))
        records, _ = self._scannable.render(self.exporter.export(self.reader, deletes).operations)
        return Refused([(key, 2 * seq + 1) for key, seq in zip(deletes.keys, deletes.seqs, strict=True)], records)


def _expires(operations: Operations, positions: Sequence[int]) -> Sequence[bool] | None:
    ttls = operations.ttls
    return None if ttls is None else [ttls[i] is not None for i in positions]
