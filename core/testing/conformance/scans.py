"""Reading records back: the tests for sinks that have the methods of ``ScannableSink``, of both guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from export_queue.core.sinks import MAX_SEQ, ScannableSink, StoredRecords
from export_queue.core.testing.conformance.histories import TRICKY_TEXTS, Delivery, operations_of, winners
from export_queue.core.testing.conformance.target import SinkTarget

Found = dict[tuple[str, bytes], tuple[int, bytes | None]]
"""Rank and document, by the sink's own name of the target and the id."""


class SinkScans(SinkTarget):
    """Tests of ``render``, ``scan`` and ``look_up``, skipped for a sink without these methods."""

    @contextmanager
    def scannable(self) -> Iterator[Any]:
        """Open the sink, if it can be read back."""
        with self.opened() as sink:
            if not isinstance(sink, ScannableSink):
                pytest.skip("this sink has no method scan: it cannot be verified")
            yield sink

    def check_scan(self, sink: Any, deliveries: Sequence[Delivery]) -> None:
        """Compare everything that is read back with the last deliveries of their records."""
        last = list(winners(deliveries).values())
        records, positions = sink.render(operations_of(last))
        wanted = self._without_ranks(sink, found_in(records))
        assert len(wanted) >= len(last), "each record has a name of its own"
        assert set(positions) == set(range(len(last)))
        ids = {one.id for one in last}
        scanned: Found = {}
        for part in sink.scan(self.collections):
            scanned |= {record: found for record, found in found_in(part).items() if record[1] in ids}
        assert self._without_ranks(sink, scanned) == {r: f for r, f in wanted.items() if self._is_kept(sink, f)}
        by_target: dict[str, list[bytes]] = {}
        for target, record in wanted:
            by_target.setdefault(target, []).append(record)
        for target, of_target in by_target.items():
            missing = self.record_id(self.fresh().encode())
            looked_up = sink.look_up(target, [*of_target, missing])
            assert list(looked_up.ids) == [*of_target, missing]
            found = found_in(looked_up)
            assert found.pop((target, missing)) == (-1, None)
            assert self._without_ranks(sink, found) == {r: f for r, f in wanted.items() if r[0] == target}

    def _is_kept(self, sink: Any, found: tuple[int, bytes | None]) -> bool:
        return not sink.capabilities.fenced or found[1] is not None

    def _without_ranks(self, sink: Any, found: Found) -> Found:
        if not sink.capabilities.fenced:
            return found
        assert all(rank == -1 for rank, _ in found.values()), "a sink without ranks shows none"
        return found

    def test_a_scan_finds_what_was_applied_tombstones_too(self) -> None:
        generator = self.generator()
        history = sorted(self.history(generator, records=60, seqs=4), key=lambda one: one.seq)
        with self.scannable() as sink:
            for seq in range(1, 5):
                self.apply(sink, [one for one in history if one.seq == seq])
            self.check_scan(sink, history)

    def test_a_scan_of_one_collection_finds_no_records_of_another(self) -> None:
        name = self.fresh()
        batch = [self.delivery(name, 3, collection=n) for n in range(2)]
        with self.scannable() as sink:
            self.apply(sink, batch)
            records, positions = sink.render(operations_of(batch))
            for n, collection in enumerate(self.collections):
                own = {record for record, position in zip(found_in(records), positions, strict=True) if position == n}
                scanned = [record for part in sink.scan([collection]) for record in found_in(part)]
                assert {one for one in scanned if one[1] == batch[n].id} == own

    def test_tricky_ids_and_documents_are_read_back(self) -> None:
        name = self.fresh()
        batch = [self.delivery(f"{name}{text}", 2) for text in TRICKY_TEXTS]
        if self.takes in ("bytes", "text"):
            batch += self.puts([text.encode() for text in TRICKY_TEXTS])
        with self.scannable() as sink:
            self.apply(sink, batch)
            self.check_scan(sink, batch)

    def test_a_scan_has_all_pages(self) -> None:
        name = self.fresh()
        batch = [self.delivery(f"{name}{n}", 1, collection=n % 2) for n in range(6000)]
        with self.scannable() as sink:
            for start in range(0, len(batch), 1000):
                self.apply(sink, batch[start : start + 1000])
            self.check_scan(sink, batch)

    def test_what_the_sink_rejects_is_not_expected(self) -> None:
        batch = [self.delivery(self.fresh(), seq) for seq in (1, MAX_SEQ + 1, 2, -1)]
        with self.scannable() as sink:
            records, positions = sink.render(operations_of(batch))
            assert set(positions) == {0, 2}
            assert set(records.ids) == {batch[0].id, batch[2].id}

    def test_a_floor_is_known_after_a_sweep(self) -> None:
        with self.scannable() as sink:
            if not hasattr(sink, "sweep"):
                pytest.skip("this sink has no method sweep: it keeps its tombstones")
            batch = [self.delivery(self.fresh(), 7, put=False)]
            self.apply(sink, batch)
            targets = sink.render(operations_of(batch))[0].targets
            assert {sink.floor_of(target) for target in targets} == {0}
            sink.sweep(store_id="conformance", floor=5)
            assert {sink.floor_of(target) for target in targets} == {5}
            self.check_scan(sink, batch)


def found_in(records: StoredRecords) -> Found:
    """Return rank and document of each record."""
    values = zip(records.ranks, records.documents, strict=True)
    return dict(zip(zip(records.targets, records.ids, strict=True), values, strict=True))
