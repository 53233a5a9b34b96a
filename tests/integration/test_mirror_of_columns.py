"""Mirrors of any data in any form, compared with dictionaries (I16)."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export_queue import Candidates, EntryError, InvalidArgument, MirrorReport, Store
from export_queue.core.segments import compact
from export_queue.core.sources import state as reading
from export_queue.core.state import columns, comparison, mirror, sorted_spool

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3) | st.sampled_from(["a", "b", "é", '"', "a\x00"])
BYTES = st.binary(min_size=1, max_size=2) | st.sampled_from([b"a", b"a\x00", b"\xff"])
LARGE = st.integers(1, 3).map(lambda n: b"%d" % n * 3000)
KINDS: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "bytes": (BYTES, st.binary(max_size=3) | LARGE),
    "json": (TEXTS, st.integers(0, 3) | TEXTS | st.floats(allow_nan=False, allow_infinity=False)),
}


@pytest.fixture(autouse=True)
def small_parts() -> Iterator[None]:
    """Make few records be many runs, pieces and windows, and differences files."""
    sizes = {
        (sorted_spool, "RUN_BYTES"): 400,
        (sorted_spool, "PIECE_BYTES"): 60,
        (comparison, "_WINDOW_BYTES"): 100,
        (reading, "WINDOW_BYTES"): 100,
        (columns, "_ROWS"): 7,
        (mirror, "_FILES_FROM"): 12,
        (mirror, "_IN_A_FILE"): 9,
        (mirror, "_ADDED_AT_ONCE"): 5,
    }
    with contextlib.ExitStack() as stack:
        for (module, name), size in sizes.items():
            stack.enter_context(mock.patch.object(module, name, size))
        yield


def as_pairs(records: dict[Any, Any]) -> Any:
    return list(records.items())


def as_mappings(records: dict[Any, Any]) -> Any:
    return [{"key": key, "value": value} for key, value in records.items()]


def as_table(records: dict[Any, Any]) -> Any:
    """Make batches of one type each: of three records, and further by their types."""
    found = []
    by_type: dict[type, list[tuple[Any, Any]]] = {}
    for key, value in records.items():
        by_type.setdefault(type(value), []).append((key, value))
    for pairs in by_type.values():
        for start in range(0, len(pairs), 3):
            keys, values = zip(*pairs[start : start + 3], strict=True)
            found.append(pa.record_batch({"key": pa.array(keys), "value": pa.array(values)}))
    return found


FORMS: list[Callable[[dict[Any, Any]], Any]] = [as_pairs, as_mappings, as_table]


def compared(before: dict[Any, Any], now: dict[Any, Any]) -> tuple[int, int, int, int]:
    common = before.keys() & now.keys()
    unchanged = sum(same(before[key], now[key]) for key in common)
    return unchanged, len(now.keys() - before.keys()), len(common) - unchanged, len(before.keys() - now.keys())


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)  # 1 and 1.0, 0.0 and -0.0 are stored differently


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_states_follow_data_in_any_form(kind: str, data: st.DataObject) -> None:
    keys, values = KINDS[kind]
    codecs = {"key": "bytes", "value": "bytes"} if kind == "bytes" else {"key": "str", "value": "json"}
    buckets = data.draw(st.sampled_from([1, 3, 40]))
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        store.create()
        store.configure_queue("q", state=True, buckets=buckets, buckets_per_range=max(1, buckets // 2), **codecs)
        expected: dict[Any, Any] = {}
        for _ in range(data.draw(st.integers(1, 5))):
            now = data.draw(st.dictionaries(keys, values, max_size=30))
            if data.draw(st.booleans()):
                now = expected | now
            scope = data.draw(st.none() | st.just("a" if kind == "json" else b"a"))
            if scope is not None:
                now = {key: value for key, value in now.items() if key.startswith(scope)}
            within = {key: value for key, value in expected.items() if scope is None or key.startswith(scope)}
            report = mirrored(store, data.draw(st.sampled_from(FORMS))(shuffled(data, now)), scope)
            assert (report.unchanged, report.new, report.changed, report.deleted) == compared(within, now)
            expected = {key: value for key, value in expected.items() if key not in within} | now
            found = dict(store.state("q").scan())
            assert found.keys() == expected.keys()
            assert all(same(found[key], expected[key]) for key in found)
            change(store, data, expected)


def shuffled(data: st.DataObject, records: dict[Any, Any]) -> dict[Any, Any]:
    return {key: records[key] for key in data.draw(st.permutations(list(records)))}


def mirrored(store: Store, rows: Any, scope: Any) -> MirrorReport:
    report = store.mirror("q", rows, scope=scope, max_deletes=1.0)
    assert store.mirror("q", rows, scope=scope).added == 0
    return report


def change(store: Store, data: st.DataObject, expected: dict[Any, Any]) -> None:
    """Compact the state, alter its buckets or delete a record by hand, or do nothing."""
    what = data.draw(st.sampled_from(["nothing", "compact", "alter", "delete"]))
    if what == "compact":
        compact(store.database, "q/@state", wanted=Candidates(least=2))
    elif what == "alter":
        store.alter_queue("q", buckets=data.draw(st.sampled_from([2, 5])), buckets_per_range=2, guard="seq")
    elif what == "delete" and expected:
        with store.transaction() as tx:
            tx.queue("q").add(key := data.draw(st.sampled_from(list(expected))), None)
        del expected[key]


@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@given(records=st.dictionaries(TEXTS, st.integers(0, 3), min_size=1, max_size=30), data=st.data())
def test_a_key_that_comes_twice_is_named_whatever_the_form(records: dict[str, int], data: st.DataObject) -> None:
    twice = data.draw(st.sampled_from(list(records)))
    pairs = data.draw(st.permutations([*records.items(), (twice, 9)]))
    rows: Any = [pa.record_batch({"key": [key], "value": [value]}) for key, value in pairs]
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        store.create()
        store.configure_queue("q", state=True, buckets=3, buckets_per_range=1)
        with pytest.raises(EntryError) as caught:
            store.mirror("q", data.draw(st.sampled_from([rows, pairs])))
        assert f"key {twice!r} comes twice" in str(caught.value)
        assert store.state("q").count() == 0


def test_batches_of_different_columns_are_one_data_set(store: Store) -> None:
    store.configure_queue("q", state=True)
    parts = [
        pa.record_batch({"id": [1, 2], "city": ["Bern", None]}),
        pa.record_batch({"city": ["Chur"], "id": ["3"]}),
        {"id": 4, "city": "Genf"},
        pa.record_batch({"id": [5], "city": pa.array([["a", 'b"']]), "more": [1.5]}),
    ]
    assert store.mirror("q", parts, key="id").new == 5
    assert dict(store.state("q").scan()) == {
        "1": {"id": 1, "city": "Bern"},
        "2": {"id": 2, "city": None},
        "3": {"city": "Chur", "id": "3"},
        "4": {"id": 4, "city": "Genf"},
        "5": {"id": 5, "city": ["a", 'b"'], "more": 1.5},
    }
    rows = [row for part in parts for row in (part.to_pylist() if isinstance(part, pa.RecordBatch) else [part])]
    assert store.mirror("q", rows, key="id").unchanged == 5


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (pa.array(["a", None]), {}, "key 'id': expected a value"),
        (pa.array(["a", "x" * 1025]), {}, "expected 1 to 1024 bytes, found 1025"),
        (pa.array(["a", ""]), {}, "expected 1 to 1024 bytes, found 0"),
        (pa.array([1.5, 2.5]), {}, "expected str, found float"),
        (pa.array(["a-1", "b-1"]), {"scope": "a-"}, "'b-1': expected one that begins with the scope"),
        (pa.array(["a", "b"]), {"value": "n"}, "key 'b': expected a value, found none"),
        (pa.array(["a", "b"]), {"value": "none"}, "column 'none': expected in each row"),
        (pa.array(["a", "b"]), {"value": "f"}, "nan, which JSON has no number for"),
        (
            pa.Array.from_buffers(
                pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
            ),
            {},
            "UTF",
        ),
    ],
)
def test_wrong_columns_are_refused_by_name(store: Store, column: pa.Array, options: Any, message: str) -> None:
    store.configure_queue("q", state=True)
    batch = pa.record_batch({"id": column, "n": pa.array([1, None]), "f": [1.0, float("nan")]})
    with pytest.raises(EntryError, match=message):
        store.mirror("q", batch, **({"key": "id", "value": ["n"]} | options))
    assert store.state("q").count() == 0


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([10**18], pa.timestamp("us", "UTC")), "out of range"),
        (pa.array([10**7], pa.int32()).cast(pa.date32()), "out of range"),
        (pa.array([1], pa.timestamp("us", "Nowhere/Zone")), "no form in Python"),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "duplicate field names"),
    ],
)
def test_a_value_that_python_has_no_form_of_is_refused(store: Store, column: pa.Array, message: str) -> None:
    store.configure_queue("q", state=True)
    with pytest.raises(EntryError, match=message):
        store.mirror("q", pa.record_batch({"id": ["a"], "v": column}), key="id")
    assert store.state("q").count() == 0


def names_twice(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["a"])] * len(names), [*names])


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (names_twice("id", "a", "a"), {"key": "id"}),
        (names_twice("id", "a", "a"), {"key": "id", "value": "a"}),
        (names_twice("id", "a", "a"), {"key": ["id", "a"], "value": "id"}),
        (names_twice("key", "value", "value"), {}),
        (pa.Table.from_batches([names_twice("a", "a")]).slice(1), {"key": "a"}),
    ],
)
def test_two_columns_of_one_name_are_refused(store: Store, data: Any, options: Any) -> None:
    store.configure_queue("q", state=True)
    with pytest.raises(EntryError, match=r"column '(a|value)': expected one of this name, found 2"):
        store.mirror("q", data, **options)
    assert store.state("q").count() == 0


def test_two_columns_of_one_name_that_are_not_needed_do_no_harm(store: Store) -> None:
    store.configure_queue("q", state=True)
    assert store.mirror("q", names_twice("id", "n", "a", "a"), key="id", value="n").new == 1


@pytest.mark.parametrize("options", [{}, {"key": "nr"}, {"key": ["id", "nr"]}, {"key": "id", "value": "nr"}])
@pytest.mark.parametrize("form", ["table", "batch", "reader", "batches"])
def test_data_without_rows_must_have_the_columns_too(store: Store, options: Any, form: str) -> None:
    store.configure_queue("q", state=True)
    store.mirror("q", [("a", 1)])
    table = pa.table({"id": pa.array([], pa.int64())})
    batch = pa.RecordBatch.from_pylist([], schema=table.schema)
    forms = {"table": table, "batch": batch, "reader": pa.RecordBatchReader.from_batches(table.schema, [])}
    with pytest.raises(EntryError, match=r"column '(key|nr)': expected in each row, found only id"):
        store.mirror("q", forms.get(form, [batch]), max_deletes=1.0, **options)
    assert store.state("q").count() == 1
    assert store.mirror("q", table, key="id", max_deletes=1.0).deleted == 1
    assert store.mirror("q", pa.table({}), key="id").added == 0  # of no rows, such as those of pandas.DataFrame([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": 5}, "key: expected the name of a column, or several"),
        ({"key": ["id", 5]}, "key: expected the name of a column, or several"),
        ({"key": "id", "value": 5}, "value: expected the name of a column, or several"),
        ({"key": "id", "settle_timeout": "5"}, "seconds: expected at least 0, found '5'"),
        ({"key": "id", "dry_run": "False"}, "dry_run: expected True or False, found 'False'"),
    ],
)
def test_options_of_other_types_are_refused_by_name(store: Store, options: Any, message: str) -> None:
    store.configure_queue("q", state=True)
    with pytest.raises(InvalidArgument, match=message):
        store.mirror("q", pa.record_batch({"id": ["a"], "v": [1]}), **options)


@pytest.mark.parametrize("options", [{"key": []}, {"key": "id", "value": []}])
def test_no_column_at_all_is_refused(store: Store, options: Any) -> None:
    store.configure_queue("q", state=True)
    with pytest.raises(InvalidArgument, match="expected the name of a column, or several, found none"):
        store.mirror("q", pa.record_batch({"id": ["a"], "v": [1]}), **options)


def test_a_value_that_is_too_large_is_refused_by_name(store: Store) -> None:
    store.configure_queue("q", state=True, value="str", max_value_bytes=10)
    with pytest.raises(EntryError, match="value of key 'b': expected at most 10 bytes, found 11"):
        store.mirror("q", pa.table({"key": ["a", "b"], "value": ["short", "x" * 11]}))
