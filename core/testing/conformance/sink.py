"""The conformance tests of a sink: whatever is delivered, each record ends at its highest rank.

Make a subclass in a pytest module; its tests run as they are::

    class TestMySink(SinkConformance):
        @pytest.fixture(autouse=True)
        def target(self, tmp_path):
            self.path = tmp_path

        def make_sink(self):
            return MySink(self.path)

        def read_all(self):
            return {("orders", b"77"): b'{"total": 12}', ...}

The oracle is simple: the highest (seq, put over delete) of each record. How the sink works does not matter. Random
tests print their seed, and use the one in the environment variable ``EXPORT_QUEUE_SEED`` if it is set.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export_queue.core.errors import SinkBelongsToAnother, SinkLostData
from export_queue.core.sinks import MAX_SEQ, ApplyResult
from export_queue.core.testing.conformance.histories import (
    TRICKY_TEXTS,
    Delivery,
    operations_of,
    shuffled_batches,
    winners,
)
from export_queue.core.testing.conformance.races import SinkRaces
from export_queue.core.testing.conformance.repairs import SinkRepairs
from export_queue.core.testing.conformance.scans import SinkScans
from export_queue.core.testing.conformance.sweeps import SinkSweeps


class SingleBatches(SinkScans):
    """Tests of single batches and of admission, for sinks of both guards."""

    def test_an_empty_batch_does_nothing(self) -> None:
        with self.opened() as sink:
            assert self.apply(sink, []) == ApplyResult(0, 0)

    def test_a_put_and_a_delete_of_one_record_in_one_batch_act_by_sequence(self) -> None:
        first, second = self.fresh(), self.fresh()
        batch = [
            self.delivery(first, 3, put=False),
            self.delivery(second, 2, put=False),
            self.delivery(first, 2),
            self.delivery(second, 3),
        ]
        with self.opened() as sink:
            assert self.apply(sink, batch).written == 2
        self.check(batch)

    def test_a_sequence_outside_of_64_bits_is_rejected_alone(self) -> None:
        name = self.fresh()
        good = [self.delivery(f"{name}{n}", MAX_SEQ) for n in range(3)]
        bad = [self.delivery(f"{name}{n}", seq) for n, seq in enumerate([MAX_SEQ + 1, -1, 1 << 63])]
        with self.opened() as sink:
            result = self.apply(sink, [good[0], bad[0], good[1], bad[1], bad[2], good[2]])
        assert [rejection.position for rejection in result.rejected] == [1, 3, 4]
        assert all(rejection.reason for rejection in result.rejected)
        self.check(good)

    def test_empty_and_large_documents_arrive_whole(self) -> None:
        sizes = [100_000, 100_000 - 7] if self.takes == "json" else [0, 1, 100_000, 0]
        batch = self.puts([self.large_document(size) for size in sizes])
        with self.opened() as sink:
            assert self.apply(sink, batch).written == len(batch)
        self.check(batch)

    def large_document(self, size: int) -> bytes:
        """Return a document of about this size; a JSON object if the sink accepts nothing else."""
        return b'{"of":"%s","seq":1}' % (b"x" * size) if self.takes == "json" else b"x" * size

    def test_every_text_is_an_id_of_its_own(self) -> None:
        name = self.fresh()
        batch = [self.delivery(f"{name}{text}", 1) for text in TRICKY_TEXTS]
        batch += [self.delivery(f"{name}{text}", 2) for text in TRICKY_TEXTS[::2]]
        with self.opened() as sink:
            assert self.apply(sink, batch).written == len(TRICKY_TEXTS)
        self.check(batch)

    def test_documents_are_kept_byte_by_byte(self) -> None:
        if self.takes in ("json", "nothing"):
            pytest.skip("this sink keeps no documents, or rewrites them")
        documents = [text.encode() for text in TRICKY_TEXTS]
        if self.takes == "bytes":
            documents += [b"\xff\x00\xfe", bytes(range(256))]
        batch = self.puts(documents)
        with self.opened() as sink:
            assert self.apply(sink, batch).written == len(batch)
        self.check(batch)

    def test_binary_ids_are_taken_or_rejected_alone(self) -> None:
        name = self.fresh().encode()
        good = [self.delivery(name + b"before", 1), self.delivery(name + b"after", 1)]
        odd = [self.delivery(name + tail, 1) for tail in (b"\xff", b"\xff\xfe\x00", b"\xed\xa0\x80")]
        with self.opened() as sink:
            result = self.apply(sink, [good[0], *odd, good[1]])
            if sink.capabilities.binary_ids:
                assert result.written == 5
                self.check([*good, *odd])
            else:
                assert [rejection.position for rejection in result.rejected] == [1, 2, 3]
                self.check(good)

    def test_documents_that_cannot_be_kept_are_rejected_alone(self) -> None:
        if self.takes in ("bytes", "nothing"):
            pytest.skip("this sink takes every document")
        name = self.fresh()
        good = [self.delivery(f"{name}{n}", 1) for n in range(20)]
        bad = self.puts([b"\xff\xfe", b"\xff"])
        with self.opened() as sink:
            result = self.apply(sink, [*good[:7], bad[0], *good[7:12], bad[1], *good[12:]])
        assert [rejection.position for rejection in result.rejected] == [7, 13]
        self.check(good)

    def test_a_rejected_operation_does_not_take_older_ones_with_it(self) -> None:
        name = self.fresh()
        good = [self.delivery(name, 4), self.delivery(name, 5)]
        bad = self.delivery(name, MAX_SEQ + 1)
        with self.opened() as sink:
            result = self.apply(sink, [good[0], bad, good[1]])
        assert (result.written, result.stale, len(result.rejected)) == (1, 1, 1)
        self.check(good)

    def test_a_sink_refuses_another_store_and_a_store_that_went_back(self) -> None:
        queue = f"conformance-{self.fresh()}0"
        with self.opened() as sink:
            sink.admit(queue_id=queue, store_id="first", fence=100)
            sink.admit(queue_id=queue, store_id="first", fence=100)  # the same drain, tried again
            sink.admit(queue_id=queue, store_id="first", fence=101)
            with pytest.raises(SinkBelongsToAnother, match="second"):
                sink.admit(queue_id=queue, store_id="second", fence=200)
            with pytest.raises(SinkBelongsToAnother, match="101"):
                sink.admit(queue_id=queue, store_id="first", fence=100)
        with self.opened() as sink:
            with pytest.raises(SinkBelongsToAnother):
                sink.admit(queue_id=queue, store_id="first", fence=99)
            sink.admit(queue_id=queue, store_id="first", fence=MAX_SEQ)
            with pytest.raises(SinkBelongsToAnother):
                sink.admit(queue_id=queue, store_id="first", fence=MAX_SEQ - 1)

    def test_queues_of_one_sink_are_admitted_one_by_one(self) -> None:
        queue = f"conformance-{self.fresh()}"
        with self.opened() as sink:
            sink.admit(queue_id=f"{queue}1", store_id="first", fence=100)
            sink.admit(queue_id=f"{queue}2", store_id="first", fence=50)


class SinkConformance(SingleBatches, SinkRaces, SinkRepairs, SinkSweeps):
    """Tests that every sink must pass. A subclass opens the sink, and reads it as its users do."""

    # Order, repetition, deletes.

    def test_any_batches_in_any_order_leave_each_record_at_its_highest_rank(self) -> None:
        steps = st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans())
        origins = st.sampled_from([0, (1 << 53) - 3, MAX_SEQ - 5])
        with self.opened() as sink:

            @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=4), origins)
            def hold(batches: list[list[tuple[int, int, bool]]], origin: int) -> None:
                prefix = self.fresh()
                delivered: list[Delivery] = []
                for batch in batches:
                    new = [self.delivery(f"{prefix}{n}", origin + seq, put=put) for n, seq, put in batch]
                    before, after = winners(delivered), winners([*delivered, *new])
                    result = self.apply(sink, new)
                    delivered += new
                    assert result.written == sum(before.get(r) != after[r] for r in after), "written must be exact"
                    assert not result.rejected
                    self.check(delivered)

            hold()

    def test_many_deliveries_repeated_and_out_of_order_end_right(self) -> None:
        generator = self.generator()
        deliveries = self.history(generator, records=150, seqs=12)
        with self.opened() as sink:
            for batch in shuffled_batches(deliveries, generator, 250):
                self.apply(sink, batch)
            self.check(deliveries)
            again = self.apply(sink, deliveries)
        assert (again.written, again.rejected) == (0, ()), "what is delivered again is stale"
        self.check(deliveries)

    def test_a_late_stale_put_does_not_bring_a_deleted_record_back(self) -> None:
        name = self.fresh()
        put, delete, late = self.delivery(name, 10), self.delivery(name, 20, put=False), self.delivery(name, 15)
        with self.opened() as sink:
            for one in (put, delete):
                assert self.apply(sink, [one]).written == 1
        with self.opened() as sink:  # another process, another day
            assert self.apply(sink, [late]).stale == 1
            self.check([put, delete, late])
            assert self.apply(sink, [self.delivery(name, 21)]).written == 1
        self.check([put, delete, late, self.delivery(name, 21)])

    def test_a_delete_of_a_record_that_never_was_is_remembered(self) -> None:
        name = self.fresh()
        delete, late = self.delivery(name, 20, put=False), self.delivery(name, 19)
        with self.opened() as sink:
            assert self.apply(sink, [delete]).written == 1
            assert self.apply(sink, [late]).stale == 1
        self.check([delete, late])

    @pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
    @pytest.mark.parametrize("put_first", [True, False], ids=["put first", "delete first"])
    def test_at_one_sequence_a_put_beats_a_delete(self, together: bool, put_first: bool) -> None:
        name = self.fresh()
        pair = [self.delivery(name, 7), self.delivery(name, 7, put=False)]
        if not put_first:
            pair.reverse()
        with self.opened() as sink:
            self.apply(sink, [self.delivery(name, 6)])
            for batch in [pair] if together else [[one] for one in pair]:
                self.apply(sink, batch)
        self.check(pair)

    def test_one_id_in_two_collections_is_two_records(self) -> None:
        name = self.fresh()
        batch = [self.delivery(name, 5), self.delivery(name, 6, put=False, collection=1)]
        with self.opened() as sink:
            assert self.apply(sink, batch).written == 2
            assert self.apply(sink, [self.delivery(name, 4, collection=1)]).stale == 1
        self.check(batch)

    # Edges of sequences, documents and ids.

    @pytest.mark.parametrize("low", [0, 999, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, MAX_SEQ - 1])
    def test_neighbouring_sequences_are_told_apart(self, low: int) -> None:
        first, second, third = (self.fresh() for _ in range(3))
        older = [self.delivery(first, low), self.delivery(second, low, put=False), self.delivery(third, low)]
        newer = [self.delivery(name, low + 1, put=name != third) for name in (first, second, third)]
        with self.opened() as sink:
            assert self.apply(sink, older[:2]).written == 2
            assert self.apply(sink, newer).written == 3
            assert self.apply(sink, older).stale == 3
        self.check([*older, *newer])

    def test_a_rejected_document_does_not_take_older_ones_with_it(self) -> None:
        if self.takes in ("bytes", "nothing"):
            pytest.skip("this sink takes every document")
        name = self.fresh()
        good = [self.delivery(name, 4), self.delivery(name, 5)]
        bad = Delivery(*good[0].record, 6, b"\xff")
        with self.opened() as sink:
            result = self.apply(sink, [good[0], bad, good[1]])
        assert (result.written, result.stale, len(result.rejected)) == (1, 1, 1)
        self.check(good)

    def test_a_put_with_a_time_to_live_is_heeded_or_rejected_alone(self) -> None:
        name = self.fresh()
        good, passing = self.delivery(f"{name}0", 1), self.delivery(f"{name}1", 1)
        with self.opened() as sink:
            result = sink.apply(replace(operations_of([good, passing]), ttls=[None, 3600.0]))
            if sink.capabilities.ttl and not result.rejected:
                self.check([good, passing])
                return
            assert [rejection.position for rejection in result.rejected] == [1], "kept for ever, in silence"
            assert (result.written, result.stale) == (1, 0)
            self.check([good])
            assert self.apply(sink, [passing]).written == 1, "what is rejected leaves no rank"

    # Stores that feed the sink.

    def test_a_sink_that_has_forgotten_a_queue_says_so(self) -> None:
        queue = f"conformance-{self.fresh()}0"
        with self.opened() as sink:
            for _ in range(2):  # nothing is written down by the refusal
                with pytest.raises(SinkLostData, match=queue):
                    sink.admit(queue_id=queue, store_id="first", fence=100, shown=99)
            sink.admit(queue_id=queue, store_id="first", fence=101)
        with self.opened() as sink:
            sink.admit(queue_id=queue, store_id="first", fence=102, shown=101)

    def test_a_sink_in_an_older_state_says_so_until_it_is_readmitted(self) -> None:
        queue = f"conformance-{self.fresh()}0"
        with self.opened() as sink:
            sink.admit(queue_id=queue, store_id="first", fence=100)
            with pytest.raises(SinkLostData, match="older state"):
                sink.admit(queue_id=queue, store_id="first", fence=102, shown=101)
            sink.admit(queue_id=queue, store_id="first", fence=103, readmit=True)
            sink.admit(queue_id=queue, store_id="first", fence=104, shown=103)
