"""What is made of several entries of a key: pure folding, and the entries of a compaction in Arrow (I6, I13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue.core.errors import FoldError, InvalidArgument
from export_queue.core.queue import Queue, find_fold, fold_values
from export_queue.core.queue.coalescing import check_coalesce
from export_queue.core.segments.coalescing import coalesced
from export_queue.core.segments.gathering import merged

Row = tuple[int, bytes, int, bytes | None]


def a_queue(coalesce: str | None, *, value: str = "json", most: int = 1000) -> Queue:
    return Queue(
        id="orders",
        number=1,
        layout=1,
        buckets=20,
        buckets_per_range=5,
        key="str",
        value=value,
        max_value_bytes=most,
        exclusive=False,
        sink=None,
        coalesce=coalesce,
    )


def table(rows: Sequence[Row]) -> pa.Table:
    kinds = {"bucket": pa.int32(), "key": pa.binary(), "value": pa.binary(), "seq": pa.int64()}
    columns = zip(*((bucket, key, value, seq) for bucket, key, seq, value in rows), strict=True) if rows else [()] * 4
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds.values(), strict=True)]
    return pa.table(dict(zip(kinds, arrays, strict=True)))


def rows_of(found: pa.Table) -> list[Row]:
    return list(zip(*(found[name].to_pylist() for name in ("bucket", "key", "seq", "value")), strict=True))


def join(values: Sequence[Any]) -> Any:
    """A fold that shows what it was given."""
    return "".join("-" if value is None else value for value in values)


def fails(values: Sequence[Any]) -> Any:
    raise ValueError(values)


def to_nothing(values: Sequence[Any]) -> Any:
    return None


JOIN = f"{__name__}:join"
FAILS = f"{__name__}:fails"
TO_NOTHING = f"{__name__}:to_nothing"
DATA: list[Row] = [
    (1, b"a", 1, b'"1"'),
    (1, b"a", 4, None),
    (1, b"b", 2, b'"2"'),
    (2, b"a", 3, b'"3"'),
    (2, b"c", 1, None),
    (2, b"c", 2, b'"4"'),
    (2, b"c", 9, b'"5"'),
]


def test_without_the_option_all_entries_stay() -> None:
    assert rows_of(coalesced(table(DATA), a_queue(None), folds_after=0)) == DATA


def test_the_latest_entry_of_each_key_stays_a_tombstone_as_well() -> None:
    found = rows_of(coalesced(table(DATA), a_queue("latest"), folds_after=None))
    assert found == [DATA[1], DATA[2], DATA[3], DATA[6]]


def test_a_fold_has_the_values_of_a_key_in_the_order_of_their_sequences() -> None:
    found = rows_of(coalesced(table(DATA), a_queue(JOIN), folds_after=0))
    assert found == [(1, b"a", 4, b'"1-"'), DATA[2], DATA[3], (2, b"c", 9, b'"-45"')]


def test_what_a_fold_makes_may_be_a_tombstone() -> None:
    found = rows_of(coalesced(table(DATA), a_queue(TO_NOTHING), folds_after=0))
    assert found == [(1, b"a", 4, None), DATA[2], DATA[3], (2, b"c", 9, None)]


def test_a_key_with_one_entry_is_not_decoded() -> None:
    rows: list[Row] = [(1, b"a", 1, b"no JSON"), (1, b"b", 1, b"1"), (1, b"c", 1, None)]
    assert rows_of(coalesced(table(rows), a_queue(JOIN), folds_after=0)) == rows


@pytest.mark.parametrize(
    ("after", "left"),
    [(1, [DATA[0], DATA[1], DATA[2], DATA[3], DATA[4], (2, b"c", 9, b'"45"')]), (2, DATA), (None, DATA)],
)
def test_what_a_drain_may_have_brought_is_not_folded(after: int | None, left: list[Row]) -> None:
    assert rows_of(coalesced(table(DATA), a_queue(JOIN), folds_after=after)) == left


@pytest.mark.parametrize("rows", [[], DATA[:1]])
@pytest.mark.parametrize("coalesce", ["latest", JOIN])
def test_few_entries_stay(rows: list[Row], coalesce: str) -> None:
    assert rows_of(coalesced(table(rows), a_queue(coalesce), folds_after=0)) == rows


values = st.none() | st.sampled_from([b'"x"', b'"y"', b'"z"'])
entries = st.dictionaries(st.tuples(st.integers(1, 2), st.sampled_from([b"a", b"b"]), st.integers(1, 6)), values)


@given(entries, st.integers(0, 6))
def test_folds_and_the_latest_agree_with_dictionaries(
    found: dict[tuple[int, bytes, int], bytes | None], after: int
) -> None:
    rows: list[Row] = [(*place, value) for place, value in sorted(found.items())]
    latest = {row[:2]: row for row in rows}
    assert rows_of(coalesced(table(rows), a_queue("latest"), folds_after=None)) == list(latest.values())
    expected = [row for row in rows if row[2] <= after]
    for key in sorted({row[:2] for row in rows if row[2] > after}):
        of_key = [row for row in rows if row[:2] == key and row[2] > after]
        texts = ["-" if value is None else value.decode().strip('"') for *_, value in of_key]
        folded = f'"{"".join(texts)}"'.encode() if len(of_key) > 1 else of_key[0][3]
        expected.append((*key, of_key[-1][2], folded))
    assert rows_of(coalesced(table(rows), a_queue(JOIN), folds_after=after)) == sorted(
        expected, key=lambda row: row[:3]
    )


def test_sources_are_sorted_and_at_one_place_the_last_counts() -> None:
    later = [(1, b"b", 2, b'"later"')]
    found = rows_of(merged([table(DATA[3:]), table(DATA[:3]), table(later)]))
    assert found == [*DATA[:2], *later, *DATA[3:]]


@pytest.mark.parametrize(
    ("coalesce", "rows", "words"),
    [
        (FAILS, DATA, "it raised ValueError"),
        ("old_new", DATA, "expected an object"),
        (f"{__name__}:missing", DATA, "cannot be imported"),
        (f"{__name__}:DATA", DATA, "expected a function"),
    ],
)
def test_a_fold_that_cannot_be_is_named_with_the_place_and_without_values(
    coalesce: str, rows: list[Row], words: str
) -> None:
    with pytest.raises(FoldError, match=words) as raised:
        coalesced(table(rows), a_queue(coalesce), folds_after=0)
    assert coalesce in raised.value.message
    assert not raised.value.transient
    if words.startswith(("it raised", "expected an object")):
        assert "queue 'orders'" in raised.value.message
        assert "bucket 1, key b'a', sequences 1 to 4" in raised.value.message
        assert '"1"' not in str(raised.value)


def test_what_a_fold_makes_is_bounded_as_what_is_added() -> None:
    with pytest.raises(FoldError, match=r"expected at most 4 bytes, found 5") as raised:
        coalesced(table(DATA), a_queue(JOIN, most=4), folds_after=0)
    assert "key b'c'" in raised.value.message
    assert "--max-value-bytes" in raised.value.hint


def pairs(*steps: tuple[Any, Any]) -> list[Any]:
    return [{"old": old, "new": new} for old, new in steps]


def old_new(*steps: tuple[Any, Any]) -> list[tuple[int, int, Any]]:
    return [(one.first, one.last, one.value) for one in fold_values(pairs(*steps), find_fold("old_new"))]


def test_pairs_become_one_from_the_first_to_the_last() -> None:
    assert old_new((None, 1), (1, 2), (2, None)) == [(0, 2, {"old": None, "new": None})]
    assert old_new((3, 1), (1, 2)) == [(0, 1, {"old": 3, "new": 2})]


def test_pairs_that_do_not_go_on_stay_apart() -> None:
    """What is missing between them reaches the sink, or has reached it, by another way."""
    assert old_new((1, 2), (3, 4)) == []
    assert old_new((1, 2), (2, 3), (4, 5), (5, 6)) == [
        (0, 1, {"old": 1, "new": 3}),
        (2, 3, {"old": 4, "new": 6}),
    ]
    assert old_new((0, 1), (True, 2), (2.0, 3)) == []


@pytest.mark.parametrize("value", [None, 1, "text", [], {"old": 1}, {"old": 1, "new": 2, "at": 3}])
def test_what_is_no_pair_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        fold_values([value, {"old": 1, "new": 2}], find_fold("old_new"))


def test_a_name_is_checked_at_once_and_an_import_path_where_it_is_used() -> None:
    for known in (None, "latest", "old_new", "nowhere.to:be_found"):
        check_coalesce(known, value="json")
    for unknown in ("last", "old-new", "", "a:", 7, True):
        with pytest.raises(InvalidArgument, match=r"\['latest', 'old_new'\] or an import path"):
            check_coalesce(unknown, value="json")
    with pytest.raises(InvalidArgument, match="found values of the codec 'str'"):
        check_coalesce("old_new", value="str")
