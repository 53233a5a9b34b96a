"""The difference between a state and a data set, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from export_queue.core.errors import EntryError
from export_queue.core.queue import Range
from export_queue.core.segments import load_pyarrow, same_as_before, windows
from export_queue.core.sources import StateContent
from export_queue.core.state.mirror_report import SAMPLES, Found

if TYPE_CHECKING:
    import pyarrow as pa

_WINDOW_BYTES = 16 << 20


@dataclass(slots=True)
class ColumnComparison:
    """Compares a data set with the state, a part of bounded size at a time.

    :param data: sources that together have the data set, each in the order of bucket and key: columns ``bucket``,
        ``key`` and ``value``.
    :param start: the encoded scope.
    """

    content: StateContent
    data: Sequence[Iterator[pa.RecordBatch]]
    start: bytes
    found: Found = field(default_factory=Found)

    def differences(self, within: Range) -> Iterator[pa.RecordBatch]:
        """Yield keys and values of the entries that make the state equal to the data set; null deletes a record.

        :param within: the buckets to compare.
        :raises EntryError: a key comes twice in the data set; the error names it.
        """
        pa = load_pyarrow()
        schema = pa.schema({"bucket": pa.int32(), "key": pa.binary(), "value": pa.binary()})
        state = self.content.record_batches(within, self.start)
        for before, *now in windows([state, *self.data], schema, size=_WINDOW_BYTES):
            yield from self._compared(before, self._joined(now))

    def _joined(self, parts: Sequence[pa.Table]) -> pa.Table:
        """Join what the runs of the data set have, and refuse a key that comes twice."""
        import pyarrow as pa

        some = [part for part in parts if part.num_rows] or parts[:1]
        table = some[0] if len(some) == 1 else _sorted(pa.concat_tables(some), ("bucket", "key"))
        twice = same_as_before(table, ("key",)).index(True).as_py()
        if twice >= 0:
            raise EntryError(
                f"key {self.content.reader.decode_key(table['key'][twice].as_py())!r} comes twice in the data set",
                hint="each record must have a key of its own",
            )
        return table

    def _compared(self, before: pa.Table, now: pa.Table) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if before["key"].equals(now["key"]):  # the usual case, which needs no sorting
            changed = pc.not_equal(before["value"], now["value"])
            none = pc.and_(changed, False)
            yield from self._taken(now, {"new": none, "changed": changed, "deleted": none})
        elif not before.num_rows:
            every = pa.repeat(True, now.num_rows)
            none = pc.invert(every)
            yield from self._taken(now, {"new": every, "changed": none, "deleted": none})
        else:
            sides = [(side, pa.repeat(pa.scalar(at, pa.int8()), len(side))) for at, side in enumerate((before, now))]
            both = pa.concat_tables([side.append_column("side", number) for side, number in sides])
            both = _sorted(both, ("bucket", "key", "side"))
            same = same_as_before(both, ("key",))
            is_now = pc.equal(both["side"], 1).combine_chunks()
            followed = pa.concat_arrays([same.slice(1), pa.array([False])])
            changed = pc.and_not(same, same_as_before(both, ("value",)))
            deleted = pc.invert(pc.or_(is_now, followed))
            yield from self._taken(
                both, {"new": pc.and_not(is_now, same), "changed": changed, "deleted": deleted}, is_now
            )

    def _taken(self, table: pa.Table, masks: dict[str, Any], counted: Any = None) -> Iterator[pa.RecordBatch]:
        """Take the rows that differ.

        :param masks: which rows are new, changed or deleted.
        :param counted: which rows are records of the data set; all by default.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        counts = {kind: pc.sum(mask).as_py() or 0 for kind, mask in masks.items()}
        records = table.num_rows if counted is None else pc.sum(counted).as_py()
        self.found.counts["unchanged"] += records - counts["new"] - counts["changed"]
        for kind, count in counts.items():
            self.found.counts[kind] += count
            samples = self.found.samples[kind]
            if count and len(samples) < SAMPLES:
                samples += nsmallest(SAMPLES - len(samples), table["key"].filter(masks[kind]).to_pylist())
        if sum(counts.values()):
            values = pc.if_else(masks["deleted"], pa.scalar(None, pa.binary()), table["value"])
            differs = pc.or_(pc.or_(masks["new"], masks["changed"]), masks["deleted"])
            columns = {"bucket": table["bucket"], "key": table["key"], "value": values}
            yield from pa.table(columns).filter(differs).combine_chunks().to_batches()


def _sorted(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    table = table.combine_chunks()
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])).combine_chunks()
