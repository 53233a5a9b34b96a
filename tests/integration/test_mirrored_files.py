"""Mirrors of files: what their values become, wherever in the file they are."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from export_queue import EntryError, InvalidArgument, Store
from export_queue.core.sources import rows_of_file

pytestmark = pytest.mark.one_store("what a file has does not depend on the store")
MANY = 12_000
"""Rows of 100 bytes that pyarrow reads in several blocks."""


def mirrored(store: Store, file: Path, **options: Any) -> dict[Any, Any]:
    store.configure_queue("q", state=True)
    store.mirror("q", lambda: rows_of_file(file.name, lambda: file.open("rb")), **({"key": "id"} | options))
    return dict(store.state("q").scan())


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["007", "7"], ["007", "7"]),
        (["1", "-20", "0"], [1, -20, 0]),
        (["999999999999999999"], [999999999999999999]),
        (["123456789012345678901234567890", "1"], ["123456789012345678901234567890", "1"]),
        (["123456789012345678", "1.5"], ["123456789012345678", "1.5"]),
        (["1", "1.5", "-0.25", "1e-07"], [1.0, 1.5, -0.25, 1e-07]),
        (["", "1", "NA"], [None, 1, None]),
        (["", "NA", "x"], ["", "NA", "x"]),
        (["", ""], [None, None]),
        (["true", "False"], [True, False]),
        (["true", "1"], ["true", "1"]),
        (["+1", "1."], ["+1", "1."]),
        (["-0", "1"], [0.0, 1.0]),
        (["2026-01-01 10:00:00", "2026-01-01"], ["2026-01-01 10:00:00", "2026-01-01"]),
        (["inf", "1.5"], ["inf", "1.5"]),
    ],
)
def test_text_of_a_csv_file_becomes_what_it_says_exactly(
    store: Store, tmp_path: Path, texts: list[str], values: list[Any]
) -> None:
    file = tmp_path / "data.csv"
    file.write_text("id,v\n" + "".join(f"k{at},{text}\n" for at, text in enumerate(texts)))
    assert mirrored(store, file) == {f"k{at}": {"id": f"k{at}", "v": value} for at, value in enumerate(values)}


def test_keys_of_a_csv_file_keep_their_zeros(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("id,v\n007,1\n7,2\n")
    assert mirrored(store, tmp_path / "data.csv", value="v") == {"007": 1, "7": 2}


@pytest.mark.parametrize(("first", "last", "found"), [("", "word", ""), ("1", "word", "1"), ("1", "1.5", 1.0)])
def test_the_end_of_a_csv_file_counts_as_its_beginning(
    store: Store, tmp_path: Path, first: str, last: str, found: Any
) -> None:
    file = tmp_path / "data.csv"
    file.write_text("id,v\n" + "".join(f"{at:0100},{first}\n" for at in range(MANY)) + f"last,{last}\n")
    rows = mirrored(store, file, value="v")
    assert (len(rows), rows["0" * 100], rows["last"]) == (MANY + 1, found, type(found)(last))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_file_without_rows_must_have_the_columns_too(store: Store, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"data.{kind}"
    if kind == "csv":
        file.write_text("id,v\n")
    else:
        parquet.write_table(pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.int64())}), file)
    assert mirrored(store, file) == {}
    with pytest.raises(EntryError, match="column 'nr': expected in each row"):
        mirrored(store, file, key="nr")


def test_two_columns_of_one_name_in_a_csv_file_are_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("id,v,v\n1,2,3\n")
    with pytest.raises(EntryError, match=r"data.csv: .*the columns are id, v, v: expected names that differ"):
        mirrored(store, tmp_path / "data.csv")


def records_as(kind: str) -> bytes:
    """Write some thousand records as a file of a kind."""
    table = pa.table({"id": [f"k{n:05}" for n in range(5000)], "n": [n * 7919 % 5000 for n in range(5000)]})
    found = io.BytesIO()
    if kind.startswith("parquet"):
        parquet.write_table(table, found, row_group_size=1000)
    elif kind.startswith("csv"):
        csv.write_csv(table, found)
    else:
        found.write(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))
    return gzip.compress(found.getvalue()) if kind.endswith(".gz") else found.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson", "csv.gz", "ndjson.gz", "jsonl.gz"])
def test_a_file_is_read_whole(store: Store, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"records.{kind}"
    file.write_bytes(records_as(kind))
    found = mirrored(store, file, value="n")
    assert (len(found), found["k00002"]) == (5000, 2 * 7919 % 5000)


@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "ndjson.gz"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused_by_name_and_nothing_changes(
    store: Store, tmp_path: Path, kind: str, part: float
) -> None:
    file, whole = tmp_path / f"records.{kind}", records_as(kind)
    file.write_bytes(whole)
    mirrored(store, file, value="n")
    file.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(EntryError, match=re.escape(file.name)):
        mirrored(store, file, value="n")
    assert store.state("q").count() == 5000
    assert store.transactions_in_progress() == []


@pytest.mark.parametrize("kind", ["csv.gz", "ndjson", "parquet"])
def test_a_file_with_a_damaged_part_is_refused_by_name(store: Store, tmp_path: Path, kind: str) -> None:
    file, whole = tmp_path / f"records.{kind}", bytearray(records_as(kind))
    whole[len(whole) // 2 : len(whole) // 2 + 200] = b"\xff" * 200
    file.write_bytes(whole)
    with pytest.raises(EntryError, match=re.escape(file.name)):
        mirrored(store, file, value="n")


def test_a_compressed_file_says_what_is_inside(store: Store, tmp_path: Path) -> None:
    for name in ("records.gz", "records.parquet.gz"):
        with pytest.raises(InvalidArgument, match="expected a name that ends with"):
            mirrored(store, tmp_path / name)
