"""Operations as columns, the collapse of a batch, and what happens around a sink's own writing."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import (
    AmbiguousRecord,
    ApplyResult,
    ControlRecord,
    Delete,
    FloorRecord,
    InvalidArgument,
    Operations,
    Put,
    Rejection,
    SinkBelongsToAnother,
    apply_batch,
    check_owner,
    raise_floor,
    refuse_seqs,
    register_store,
    stale_rank,
)
from export_queue.core.sinks import MAX_SEQ, OperationsBuilder, collapse
from export_queue.core.sinks.batch import isolate, refuse_lengths


def operations(*rows: tuple[bytes, int, bytes | None], entries: list[int] | None = None) -> Operations:
    """Make operations on one collection from (id, seq, document)."""
    ids, seqs, documents = ([row[i] for row in rows] for i in range(3))
    return Operations(["c"] * len(rows), ids, documents, seqs, entries or list(range(len(rows))))


def test_a_put_ranks_above_a_delete_of_its_sequence_and_below_the_next_one():
    assert operations((b"a", 7, None), (b"a", 7, b"x"), (b"a", 8, None)).ranks() == [14, 15, 16]


def test_the_largest_rank_fits_a_signed_64_bit_integer():
    assert operations((b"a", MAX_SEQ, b"x")).ranks() == [2**63 - 1]


@pytest.mark.parametrize(
    ("rows", "kept", "dropped"),
    [
        ([(b"a", 1, b"x"), (b"b", 1, b"y")], [0, 1], []),
        ([(b"a", 1, b"x"), (b"a", 2, b"y")], [1], [0]),
        ([(b"a", 2, b"y"), (b"a", 1, b"x")], [0], [1]),
        ([(b"a", 2, None), (b"a", 1, b"x")], [0], [1]),
        ([(b"a", 2, None), (b"a", 2, b"x")], [1], [0]),
        ([(b"a", 2, b"x"), (b"a", 2, None)], [0], [1]),
        ([(b"a", 1, b"x"), (b"a", 3, None), (b"a", 2, b"y"), (b"b", 0, None)], [1, 3], [0, 2]),
        ([(b"a", 2, b"x"), (b"a", 2, b"x")], [1], [0]),
    ],
)
def test_collapse_keeps_the_highest_rank_of_each_record(rows, kept, dropped):
    given_ = operations(*rows)
    found, lost = collapse(given_)
    assert (found.entries, lost) == (kept, dropped)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 4), st.booleans()), max_size=12))
def test_collapse_agrees_with_the_highest_of_each_record(rows):
    given_ = operations(*((record, seq, b"%d" % seq if put else None) for record, seq, put in rows))
    found, dropped = collapse(given_)
    left = zip(found.ids, found.seqs, found.documents, strict=True)
    assert {record: (seq, document is not None) for record, seq, document in left} == {
        record: max((seq, put) for other, seq, put in rows if other == record) for record, _, _ in rows
    }
    assert sorted([*found.entries, *dropped]) == list(range(len(rows)))
    assert len(set(found.ids)) == len(found)


def test_of_two_puts_of_one_entry_the_last_one_stays():
    found, _ = collapse(operations((b"a", 1, b"x"), (b"a", 1, b"y"), entries=[0, 0]))
    assert found.documents == [b"y"]


def test_different_puts_of_two_entries_at_one_sequence_are_ambiguous():
    with pytest.raises(AmbiguousRecord, match="seq 4") as caught:
        collapse(operations((b"b", 1, b"x"), (b"a", 4, b"x"), (b"a", 4, b"y")))
    assert caught.value.positions == (1, 2)


def test_the_positions_of_ambiguous_operations_are_those_of_the_whole_batch():
    batch = operations((b"b", -1, b"x"), (b"a", 4, b"x"), (b"a", 4, b"y"))
    with pytest.raises(AmbiguousRecord) as caught:
        apply_batch(batch, reasons={0: "no"}, write=lambda part: ApplyResult(len(part), 0))
    assert caught.value.positions == (1, 2)


@pytest.mark.parametrize(
    ("rows", "size", "lengths"), [(2, 100, [2, 2, 1]), (9, 8, [2, 2, 1]), (9, 1, [1] * 5), (9, 99, [5])]
)
def test_slices_are_bounded_in_rows_and_bytes(rows, size, lengths):
    batch = operations(*((b"%d" % n, n, b"abc") for n in range(5)))
    parts = list(batch.slices(rows=rows, size=size))
    assert [len(part) for part in parts] == lengths
    assert [record for part in parts for record in part.ids] == batch.ids


def test_the_builder_takes_text_bytes_and_json():
    builder = OperationsBuilder()
    builder.add(
        [Put("c", "é", {"n": Decimal("1.10")}), Put("c", b"\xff", b"\xff"), Put("c", "t", "text"), Delete("d", "x")],
        seq=5,
        entry=0,
    )
    built = builder.build()
    assert built.ids == ["é".encode(), b"\xff", b"t", b"x"]
    assert built.documents == [b'{"n":1.10}', b"\xff", b"text", None]
    assert (built.seqs, built.entries, built.collections) == ([5] * 4, [0] * 4, ["c", "c", "c", "d"])


@pytest.mark.parametrize(
    "bad",
    ["text", Put("c", 5, b""), Put("c", "\ud800", b""), Put("c", "a", {1, 2}), Put("c", "a", "\ud800"), Delete(7, "a")],
)
def test_the_builder_takes_all_operations_of_an_entry_or_none(bad):
    builder = OperationsBuilder()
    with pytest.raises(InvalidArgument):
        builder.add([Put("c", "good", b"x"), bad], seq=5, entry=0)
    assert len(builder.build()) == 0


class Writer:
    """Stands for a sink's own writing: rejects some documents and remembers what it was given."""

    def __init__(self, *poison: bytes) -> None:
        self.poison = poison
        self.given: list[list[bytes | None]] = []

    def __call__(self, batch: Operations) -> ApplyResult:
        assert len(set(batch.ids)) == len(batch), "records must be distinct"
        self.given.append(list(batch.documents))
        rejected = tuple(Rejection(i, "poison") for i, d in enumerate(batch.documents) if d in self.poison)
        return ApplyResult(len(batch) - len(rejected), 0, rejected)


def test_what_loses_inside_a_batch_counts_as_stale():
    result = apply_batch(operations((b"a", 1, b"x"), (b"a", 2, b"y"), (b"b", 1, b"z")), reasons={}, write=Writer())
    assert result == ApplyResult(2, 1)


def test_the_loser_against_a_rejected_operation_is_tried_next():
    writer = Writer(b"newest")
    batch = operations((b"a", 1, b"old"), (b"b", 1, b"other"), (b"a", 3, b"newest"), (b"a", 2, b"newer"))
    result = apply_batch(batch, reasons={}, write=writer)
    assert result == ApplyResult(2, 1, (Rejection(2, "poison"),))
    assert writer.given == [[b"other", b"newest"], [b"newer"]]


def test_what_is_refused_before_sending_is_not_sent():
    writer = Writer()
    result = apply_batch(operations((b"a", 1, b"x"), (b"a", 2, b"y")), reasons={1: "too new"}, write=writer)
    assert result == ApplyResult(1, 0, (Rejection(1, "too new"),))
    assert writer.given == [[b"x"]]


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 4), st.booleans()), max_size=12), st.integers(0, 4)
)
def test_counts_of_a_batch_always_add_up(rows, poison):
    """I13."""
    batch = operations(*((record, seq, b"%d" % seq if put else None) for record, seq, put in rows))
    result = apply_batch(batch, reasons={}, write=Writer(b"%d" % poison))
    assert result.written + result.stale + len(result.rejected) == len(batch)
    assert {rejection.position for rejection in result.rejected} <= {
        i for i, document in enumerate(batch.documents) if document == b"%d" % poison
    }


def test_sequences_without_a_rank_of_64_bits_are_refused():
    reasons = {}
    refuse_seqs(operations((b"a", 0, b""), (b"a", MAX_SEQ, b""), (b"a", -1, b""), (b"a", MAX_SEQ + 1, b"")), reasons)
    assert sorted(reasons) == [2, 3]


def test_ids_and_documents_that_are_too_long_are_refused():
    reasons = {}
    refuse_lengths(
        operations((b"aaa", 0, b"x"), (b"a", 0, b"xxxx"), (b"a", 0, None)), reasons, id_bytes=2, document_bytes=3
    )
    assert sorted(reasons) == [0, 1]
    assert "3 bytes, at most 2" in reasons[0]


def admit(found: ControlRecord | None, store_id: str = "s", fence: int = 5) -> ControlRecord:
    return check_owner(found, queue_id="q", store_id=store_id, fence=fence, sink="the sink")


@pytest.mark.parametrize("seen", [4, 5])
def test_a_store_that_went_on_is_admitted_with_its_new_fence(seen):
    assert admit(ControlRecord("s", seen)) == ControlRecord("s", 5)


def test_the_first_store_is_admitted():
    assert admit(None) == ControlRecord("s", 5)


@pytest.mark.parametrize("found", [ControlRecord("other", 1), ControlRecord("s", 6)])
def test_another_store_or_a_later_state_is_refused_by_name(found):
    with pytest.raises(SinkBelongsToAnother, match="'q' of sink the sink") as caught:
        admit(found)
    assert "floor" in caught.value.hint


@pytest.mark.parametrize(("store_id", "fence"), [("", 1), ("s", -1), ("s", MAX_SEQ + 1)])
def test_a_store_without_a_name_or_a_fence_that_is_no_id_is_refused(store_id, fence):
    with pytest.raises(InvalidArgument):
        admit(None, store_id, fence)


NEVER, OURS, TWO = FloorRecord(), FloorRecord(frozenset({"s"}), 7), FloorRecord(frozenset({"s", "t"}))


@pytest.mark.parametrize(
    ("found", "store_id", "wanted"),
    [
        (NEVER, "s", FloorRecord(frozenset({"s"}))),
        (OURS, "s", OURS),
        (TWO, "s", TWO),
        (TWO, "u", FloorRecord(frozenset({"s", "t", "u"}))),
    ],
)
def test_any_store_may_join_a_sink_that_was_never_swept_and_its_sweeper_always(found, store_id, wanted):
    assert register_store(found, store_id=store_id, sink="the sink") == wanted


def test_no_other_store_joins_a_sink_that_was_swept():
    with pytest.raises(SinkBelongsToAnother, match="swept by another store: expected store t, found store s"):
        register_store(OURS, store_id="t", sink="the sink")


@pytest.mark.parametrize(
    ("found", "floor", "wanted"), [(NEVER, 0, 0), (NEVER, 9, 9), (OURS, 9, 9), (OURS, 7, 7), (OURS, 3, 7)]
)
def test_a_floor_never_falls(found, floor, wanted):
    assert raise_floor(found, store_id="s", floor=floor, sink="the sink") == FloorRecord(frozenset({"s"}), wanted)


@pytest.mark.parametrize(("found", "store_id"), [(TWO, "s"), (OURS, "t"), (FloorRecord(frozenset({"s"})), "t")])
def test_a_sink_that_another_store_feeds_is_not_swept(found, store_id):
    with pytest.raises(SinkBelongsToAnother, match="fed by other stores"):
        raise_floor(found, store_id=store_id, floor=9, sink="the sink")


@pytest.mark.parametrize("floor", [-1, MAX_SEQ + 1])
def test_a_floor_that_is_no_sequence_is_refused(floor):
    with pytest.raises(InvalidArgument):
        raise_floor(NEVER, store_id="s", floor=floor, sink="the sink")


def test_a_floor_makes_all_ranks_of_its_sequence_stale_and_none_where_there_is_none():
    assert [stale_rank(floor) for floor in (0, 1, MAX_SEQ)] == [-1, 3, 2 * MAX_SEQ + 1]


# Times to live


def built(*operations: Put | Delete) -> Operations:
    builder = OperationsBuilder()
    for i, operation in enumerate(operations):
        builder.add([operation], seq=5, entry=i)
    return builder.build()


def test_without_times_to_live_there_is_no_column():
    assert built(Put("c", "a", b"x"), Delete("c", "b")).ttls is None


def test_times_to_live_go_with_their_operations():
    everything = built(Put("c", "a", b"x"), Put("c", "b", b"y", ttl=2), Put("c", "a", b"x"), Put("c", "d", b"z", 0.5))
    assert everything.ttls == [None, 2, None, 0.5]
    assert everything.take([3, 0]).ttls == [0.5, None]
    assert [part.ttls for part in everything.slices(rows=2, size=100)] == [[None, 2], [None, 0.5]]
    kept, dropped = collapse(everything)
    assert (dropped, kept.ttls) == ([0], [2, None, 0.5])


@pytest.mark.parametrize("ttl", [0, -1, "5", True, float("nan"), float("inf"), 1e12])
def test_what_is_no_time_to_live_is_refused(ttl):
    with pytest.raises(InvalidArgument, match="time to live"):
        built(Put("c", "a", b"x", ttl=ttl))
    batch = Operations(["c"], [b"a"], [b"x"], [1], [0], [ttl])
    result = apply_batch(batch, reasons={}, write=lambda part: ApplyResult(len(part), 0), ttl=True)
    assert [one.position for one in result.rejected] == [0]


def test_a_refused_time_to_live_adds_nothing_of_its_entry():
    builder = OperationsBuilder()
    with pytest.raises(InvalidArgument):
        builder.add([Put("c", "a", b"x", ttl=3), Put("c", "b", b"x", ttl=0)], seq=5, entry=0)
    builder.add([Put("c", "c", b"x")], seq=5, entry=1)
    assert builder.build() == Operations(["c"], [b"c"], [b"x"], [5], [1])


def test_one_document_for_two_times_is_ambiguous():
    with pytest.raises(AmbiguousRecord):
        collapse(built(Put("c", "a", b"x", ttl=1), Put("c", "a", b"x", ttl=2)))


def test_a_sink_that_keeps_no_times_rejects_them():
    batch = Operations(["c"] * 2, [b"a", b"b"], [b"x", b"y"], [1, 1], [0, 1], [None, 5])
    result = apply_batch(batch, reasons={}, write=lambda part: ApplyResult(len(part), 0))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    assert "takes no put with a time to live" in result.rejected[0].reason


@given(st.integers(0, 60), st.sets(st.integers(0, 59)), st.booleans())
def test_culprits_are_isolated_and_all_others_get_through_once(count, culprits, weighed):
    taken: list[int] = []

    def attempt(chosen: range) -> str | None:
        if culprits & set(chosen):
            return f"one of {list(chosen)}"
        taken.extend(chosen)
        return None

    found = list(isolate(count, attempt, weigh=(lambda i: i * i) if weighed else None))
    expected = sorted(culprits & set(range(count)))
    assert found == [(i, f"one of {[i]}") for i in expected]
    assert taken == [i for i in range(count) if i not in culprits]


def test_halves_are_of_about_the_same_weight():
    parts = [b"x" * 900, *[b"x"] * 900]
    tried: list[range] = []
    list(isolate(len(parts), lambda chosen: tried.append(chosen) or len(chosen) > 900, weigh=lambda i: len(parts[i])))
    assert len(tried[1]) <= 2


def test_a_refusal_is_reported_before_anything_further_is_tried():
    tried: list[range] = []
    for _ in isolate(8, lambda chosen: tried.append(chosen) or "no"):
        break
    assert tried == [range(8), range(4), range(2), range(1)]
