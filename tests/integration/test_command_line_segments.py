"""Segments from the command line: looked at, merged, vacuumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import bulk
from tests.support.bulk import many
from tests.support.command_line import run_cli

from export_queue import MemorySink, Store, drain

FIVE_LOADS = 5


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A SQLite store with a queue of two units, five loads and some rows."""
    found = f"sqlite:///{tmp_path}/store.db"
    with Store.open(found) as store:
        store.create()
        store.configure_queue("orders", buckets=10, buckets_per_range=5, value="bytes")
        for _ in range(FIVE_LOADS):
            bulk.load(store, many(20, b"load"))
        bulk.put(store, list(many(20)), b"row")
    return found


def test_a_dry_run_says_what_a_compaction_then_does(url: str) -> None:
    told = run_cli("compact", "orders", "--dry-run", "--least", "2", url=url)
    assert "orders: would merge 10 segments and 20 rows in 2 units, about 120 entries" in told
    assert "[0, 5): 5 segments and" in told
    report = json.loads(run_cli("compact", "orders", "--least", "2", "--json", url=url))
    assert (report["inputs"], report["outputs"], report["rows"], report["read"]) == (10, 2, 20, 120)
    assert report["read"] == report["written"] + report["superseded"]
    assert sum(unit["read"] for unit in report["units"]) == 120
    with Store.open(url) as store:
        assert drain(store, "orders", MemorySink(), sink_name="sink").acknowledged == 120


def test_what_is_large_young_or_too_few_is_left_alone(url: str) -> None:
    for options in (["--small", "0.00001"], ["--age", "3600"], ["--least", "7"]):
        assert "would merge 0 segments" in run_cli("compact", "orders", "--dry-run", *options, url=url)


def test_what_waits_in_older_layouts_is_moved(url: str) -> None:
    with Store.open(url) as store:
        store.alter_queue("orders", buckets=8, buckets_per_range=2, guard="seq")
    told = run_cli("compact", "orders", "--older-layouts", "--dry-run", url=url)
    assert "orders: would rewrite 10 segments and 20 rows in 2 units of older layouts, about 120 entries" in told
    report = json.loads(run_cli("compact", "orders", "--older-layouts", "--json", url=url))
    assert (report["inputs"], report["rows"], report["read"], report["written"]) == (10, 20, 120, 120)
    assert (report["outputs"], len(report["files"]), report["still_open"]) == (8, 2, [])
    assert "8 segments: 8 visible" in run_cli("segments", "orders", url=url)
    listed = json.loads(run_cli("segments", "orders", "--json", url=url))
    assert [one["range"][2] for one in listed if one["state"] == "visible"] == [2] * 8
    told = run_cli("compact", "orders", "--older-layouts", url=url)
    assert "0 units of older layouts rewritten into 0 segments" in told
    assert "no older layout is open" in told
    with Store.open(url) as store:
        assert drain(store, "orders", MemorySink(), sink_name="sink").acknowledged == 120


def test_segments_are_listed_with_what_has_replaced_them(url: str) -> None:
    before = run_cli("segments", "orders", url=url)
    assert "10 segments: 10 visible" in before
    run_cli("compact", "orders", "--least", "2", url=url)
    run_cli("compact", "orders", "--least", "2", url=url)
    after = run_cli("segments", "orders", url=url)
    assert "12 segments: 2 visible, 10 hidden" in after
    assert (after.count("visible"), after.count("hidden")) == (2 + 1, 10 + 2)
    assert "… and 9 more (--limit)" in run_cli("segments", "orders", "--limit", "3", url=url)
    found = json.loads(run_cli("segments", "orders", "--json", url=url))
    outputs = [one for one in found if one["state"] == "visible"]
    assert {one["hidden_by"] for one in found if one["state"] == "hidden"} == {one["segment"] for one in outputs}
    assert sum(one["left"] for one in found) == 120


def test_a_drained_output_is_retired_until_the_vacuum(url: str) -> None:
    run_cli("compact", "orders", "--least", "2", url=url)
    with Store.open(url) as store:
        drain(store, "orders", MemorySink(), sink_name="sink")
    found = json.loads(run_cli("segments", "orders", "--json", url=url))
    assert {one["state"] for one in found} == {"retired", "hidden"}
    run_cli("vacuum", url=url)
    assert json.loads(run_cli("segments", "orders", "--json", url=url)) == []


def test_drained_segments_of_units_that_were_altered_are_not_shown(url: str) -> None:
    run_cli("compact", "orders", "--least", "2", url=url)
    with Store.open(url) as store:
        drain(store, "orders", MemorySink(), sink_name="sink")
        store.alter_queue("orders", buckets_per_range=2)
        bulk.load(store, many(20, b"load"))
    assert "5 segments: 5 visible" in run_cli("segments", "orders", url=url)


def test_a_dry_run_of_the_vacuum_names_the_files_that_the_next_one_deletes(url: str) -> None:
    run_cli("compact", "orders", "--least", "2", url=url)
    assert json.loads(run_cli("vacuum", "--dry-run", "--json", url=url))["files"] == []
    waiting = json.loads(run_cli("vacuum", "--dry-run", "--keep-hidden", "0", "--json", url=url))["waiting"]
    assert [one["seconds"] for one in waiting] == [3600.0] * FIVE_LOADS
    told = run_cli("vacuum", "--dry-run", "--keep-hidden", "0", url=url)
    assert f"{waiting[0]['file']} stays for 60 minutes\n" in told
    assert told.endswith(f"0 files would be deleted, {FIVE_LOADS} are in their grace time\n")
    at_once = ("--grace", "0", "--keep-hidden", "0", "--json")
    foretold = json.loads(run_cli("vacuum", "--dry-run", *at_once, url=url))["files"]
    assert foretold == [one["file"] for one in waiting]
    assert len(foretold) == FIVE_LOADS
    assert all(Path(file).exists() for file in foretold)
    assert "10 hidden" in run_cli("segments", "orders", url=url)
    deleted = json.loads(run_cli("vacuum", *at_once, url=url))["files"]
    assert deleted == foretold
    assert not any(Path(file).exists() for file in foretold)


def test_no_file_of_an_open_transaction_is_named_by_a_dry_run(url: str) -> None:
    with Store.open(url) as store, store.transaction(long=True) as tx:
        bulk.add(tx, store, many(20, b"more"))
        assert json.loads(run_cli("vacuum", "--dry-run", "--json", url=url))["files"] == []
