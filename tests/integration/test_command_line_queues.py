"""Queues and tables from the command line: options, entries that wait, the story of a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.command_line import run_cli
from tests.support.contexts import context_of, opened_by

from export_queue import Candidates, MemorySink, Store, bucket, drain
from export_queue.core.cli.console import seq_time
from export_queue.core.transactions import OpenTransaction

pytestmark = pytest.mark.one_store("what commands print is the same on each store")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    assert set(json.loads(run_cli("init", "--json", url=found))) == {"store", "url", "schema_version"}
    return found


def test_a_queue_is_configured_and_altered_by_the_command_of_the_error(url: str) -> None:
    options = ["configure", "orders", "--buckets", "16", "--value", "str"]
    configured = json.loads(run_cli(*options, "--json", url=url))
    assert configured == {
        "queue": "orders",
        "buckets": 16,
        "buckets_per_range": 2,
        "key": "str",
        "value": "str",
        "max_value_bytes": 1 << 20,
        "exclusive": False,
        "coalesce": None,
        "sink": None,
        "layout": 1,
        "state": False,
        "history": None,
        "drains_out": [],
        "subscriptions": [],
    }
    assert "buckets_per_range  2" in run_cli(*options, url=url)
    options += ["--max-value-bytes", "99", "--exclusive", "--coalesce", "latest", "--buckets-per-range", "4"]
    complaint = run_cli(*options, url=url, status=1)
    command = complaint.partition("export-queue ")[2].partition(" --store")[0]
    altered = json.loads(run_cli(*command.split(), "--json", url=url))
    assert json.loads(run_cli(*options, "--json", url=url)) == altered
    assert (altered["max_value_bytes"], altered["exclusive"], altered["buckets_per_range"]) == (99, True, 4)
    assert not json.loads(run_cli("alter", "orders", "--no-exclusive", "--json", url=url))["exclusive"]
    assert altered["coalesce"] == "latest"
    assert json.loads(run_cli("alter", "orders", "--no-coalesce", "--json", url=url))["coalesce"] is None
    assert "expected one of" in run_cli("alter", "orders", "--no-coalesce", "--coalesce", "latest", url=url, status=2)
    assert "nothing to alter" in run_cli("alter", "orders", url=url, status=2)


def test_units_are_altered_beside_entries_only_where_the_sinks_have_ranks(url: str) -> None:
    run_cli("configure", "orders", "--buckets", "16", url=url)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add("anna", 1)
    assert "--guard seq" in run_cli("alter", "orders", "--buckets-per-range", "8", url=url, status=1)
    run_cli("alter", "orders", "--buckets-per-range", "8", "--guard", "seq", url=url)


def test_buckets_are_altered_and_the_status_says_what_waits_in_the_former_ones(url: str, tmp_path: Path) -> None:
    run_cli("configure", "orders", "--buckets", "16", url=url)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add_many((f"key-{n}", n) for n in range(20))
    assert "in_older_layouts" not in run_cli("status", url=url)
    altered = run_cli("alter", "orders", "--buckets", "7", "--guard", "seq", "--json", url=url)
    assert {"buckets": 7, "buckets_per_range": 2, "layout": 2, "drains_out": [1]}.items() <= json.loads(altered).items()
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add("key-1", -1)
    (row,) = json.loads(run_cli("status", "--json", url=url))
    assert (row["entries"], row["in_older_layouts"]) == (21, 20)
    assert "in_older_layouts" in run_cli("status", url=url)
    at = bucket(b"key-1", 7) // 2 * 2
    assert row["ranges"][-1] == [at, min(at + 2, 7), 2]
    place = "" if url.startswith("sqlite") else "export_queue."
    with Store.open(url) as store, store.database.read() as work:
        lag = work.connection.exec_driver_sql(f"select layout, first_bucket, entries from {place}queue_lag").all()
    assert sorted(lag)[-1] == (2, at, 1)
    assert sum(entries for layout, _, entries in lag if layout == 1) == 20
    assert {first % 2 for layout, first, _ in lag if layout == 1} == {0}
    command = ["drain", "orders", "--sink", f"sqlite:///{tmp_path / 'copies.db'}", "--json"]
    assert json.loads(run_cli(*command, "--range", f"{at}:{min(at + 2, 7)}:2", url=url))["read"] == 1
    assert "such as 0:101" in run_cli(*command, "--range", "0:2:x", url=url, status=2)


def test_a_table_is_configured(url: str) -> None:
    options = ["configure-table", "totals", "--conflict", "cell", "--row", "str", "--value", "int", "--ttl", "60"]
    stored = {"table": "totals", "conflict": "cell", "ttl": 60.0, "row": "str", "value": "int"}
    assert json.loads(run_cli(*options, "--json", url=url)) == stored
    run_cli(*options, url=url)
    assert "ttl: expected None, found 60.0" in run_cli(*options[:-2], url=url, status=1)


def test_a_queue_is_bound_to_another_sink(url: str) -> None:
    run_cli("configure", "orders", url=url)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add("anna", 1)
    with Store.open(url) as store:
        drain(store, "orders", MemorySink(), sink_name="old")
    found = json.loads(run_cli("rebind", "orders", "new", "--json", url=url))
    (lacking,) = found.pop("incomplete")
    assert "from sink old to new: it may lack 1 entries that drains had delivered to it" in lacking
    assert found == {"queue": "orders", "sink": "new", "before": "old"}
    with Store.open(url) as store:
        assert store.queue("orders").sink == "new"


def test_readers_of_a_queue_come_and_go(url: str) -> None:
    options = ["configure", "airports", "--buckets", "16", "--subscription", "search", "--subscription", "cache"]
    assert json.loads(run_cli(*options, "--json", url=url))["subscriptions"] == ["airports/cache", "airports/search"]
    assert "export-queue subscribe airports NAME" in run_cli(*options[:-2], url=url, status=1)
    reports = json.loads(run_cli("subscribe", "airports", "reports", "--json", url=url))
    assert reports == {
        "subscription": "airports/reports",
        "queue": "airports",
        "sink": None,
        "first_load": "missing",
    }
    waived = json.loads(run_cli("waive-first-load", "airports/reports", "--json", url=url))
    assert waived["first_load"] == "waived"
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("airports").add("OSL", 1)
    rows = json.loads(run_cli("status", "--json", url=url))
    assert [(row["queue"], row["entries"], row["first_load"]) for row in rows] == [
        ("airports/cache", 1, None),
        ("airports/reports", 1, "waived"),
        ("airports/search", 1, None),
    ]
    assert "waived" in run_cli("status", url=url)
    (entry,) = json.loads(run_cli("peek", "airports/search", "--json", url=url))
    assert entry["key"] == "OSL"
    assert len(json.loads(run_cli("why", "airports/search", "OSL", "--json", url=url))["queued"]) == 1
    for command in (["peek", "airports"], ["why", "airports", "OSL"]):
        found = json.loads(run_cli(*command, "--json", url=url))
        assert [one["queue"] for one in found] == ["airports/cache", "airports/reports", "airports/search"]
    assert "1 entries" in run_cli("unsubscribe", "airports", "reports", url=url, status=1)
    left = json.loads(run_cli("unsubscribe", "airports", "reports", "--discard", "--json", url=url))
    assert left["subscriptions"] == ["airports/cache", "airports/search"]


def test_the_status_shows_the_state_of_a_queue_next_to_its_readers(url: str, tmp_path: Path) -> None:
    run_cli("configure", "airports", "--buckets", "2", "--subscription", "search", url=url)
    assert [row["queue"] for row in json.loads(run_cli("status", "--json", url=url))] == ["airports/search"]
    run_cli("alter", "airports", "--state", "--history", "7d", url=url)
    with Store.open(url, segments=str(tmp_path)) as store:
        with store.transaction() as tx:
            tx.queue("airports").add_many([("BRS", {}), ("BSL", {})])
            committed = tx.id
        (state, search) = json.loads(run_cli("status", "--json", url=url))
        assert (state["queue"], state["entries"], state["sink"]) == ("airports/@state", 0, None)
        assert state["first_load"] == "missing"
        assert state["state"] == {
            "complete": False,
            "history": 7 * 24 * 3600,
            "rows": 2,
            "oldest_row": seq_time(committed),
            "files": 0,
        }
        assert (search["queue"], search["entries"], search["state"]) == ("airports/search", 2, None)
        shown = run_cli("status", url=url)
        assert 'export_queue_first_load_missing{queue="airports/@state"} 1' in store.metrics()
        assert "airports/@state" in shown
        assert "first load missing; history 7d; 2 rows, 0 files" in shown

        store.first_load(store.state("airports").id, source=lambda: iter(()))
        with store.transaction(long=True) as tx:
            tx.queue("airports").add_batch(pa.table({"key": ["BRS", "ZRH"], "value": [{"n": 1}] * 2}))
        found = store.state("airports").status()
        assert (found.is_complete, found.rows, found.files > 0) == (True, 2, True)
        store.compact("airports/@state", wanted=Candidates(least=2))
        merged = store.state("airports").status()
        assert merged.rows < 2
        assert "complete; history 7d; " in run_cli("status", url=url)


def test_one_key_of_a_state_is_shown_without_options_for_several(url: str) -> None:
    run_cli("configure", "airports", "--state", url=url)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("airports").add("ZRH", 1)
    assert json.loads(run_cli("state", "airports", "ZRH", "--json", url=url)) == [{"key": "ZRH", "value": 1}]
    assert json.loads(run_cli("state", "airports", "--count", "--prefix", "Z", "--json", url=url))["keys"] == 1
    for options in (["--count"], ["--prefix", "Z"]):
        complaint = run_cli("state", "airports", "ZRH", *options, url=url, status=1)
        assert f"expected one key, or {options[0]}; found both" in complaint


def test_a_state_in_former_buckets_and_staged_rows_are_told_apart(url: str) -> None:
    run_cli("configure", "airports", "--buckets", "4", "--state", url=url)
    with Store.open(url) as store:
        store.run(lambda tx: tx.queue("airports").add_many([("BRS", {}), ("BSL", {})]))
        run_cli("alter", "airports", "--buckets", "8", "--guard", "seq", url=url)
        with store.transaction(long=True) as tx:
            tx.queue("airports").add("GVA", {})
            tx.flush()
            found = store.state("airports").status()
            assert (found.rows, found.in_older_layouts, found.oldest_row) == (
                2,
                2,
                store.peek("airports")[0].position.seq,
            )
        assert store.state("airports").status().rows == 3
    rows = {row["queue"]: row for row in json.loads(run_cli("status", "--json", url=url))}
    assert rows["airports/@state"]["in_older_layouts"] == 2


def test_entries_are_looked_at_and_values_shown_on_request_only(url: str) -> None:
    run_cli("configure", "orders", "--key", "bytes", "--value", "str", url=url)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add(b"anna", "confidential")
        tx.queue("orders").add(b"\xff", None)
        seq = str(tx.id)
    rows = json.loads(run_cli("peek", "orders", "--json", url=url))
    assert {(row["key"], row["key_hex"], row["seq"], row["value_bytes"]) for row in rows} == {
        ("anna", "616e6e61", seq, 12),
        ("\\xff", "ff", seq, None),
    }
    assert all(row["time"].startswith("20") and "value" not in row for row in rows)
    assert "confidential" not in run_cli("peek", "orders", url=url)
    (anna,) = json.loads(run_cli("peek", "orders", "--key", "anna", "--values", "--json", url=url))
    assert anna["value"] == "confidential"
    assert json.loads(run_cli("peek", "orders", "--key-hex", "ff", "--json", url=url))[0]["key_hex"] == "ff"
    assert len(json.loads(run_cli("peek", "orders", "--limit", "1", "--json", url=url))) == 1
    assert "which key?" in run_cli("peek", "orders", "--key", "a", "--key-hex", "61", url=url, status=2)
    assert len(json.loads(run_cli("peek", "orders", "--json", url=url))) == 2, "nothing was removed"


def test_the_story_of_a_key_is_told(url: str) -> None:
    run_cli("configure", "orders", "--buckets", "16", url=url)
    nothing = json.loads(run_cli("why", "orders", "anna", "--json", url=url))
    assert {name for name, value in nothing.items() if value in (None, [])} == {
        "sink",
        "last_commit",
        "queued",
        "not_committed",
        "dead",
        "exported",
        "last_drain",
        "possible_delivery",
    }
    with Store.open(url) as store:
        long = context_of(store, OpenTransaction(store.database, kind="long"))
        long.queue("orders").add("anna", 0)
        long.flush()
        with store.transaction() as tx:
            tx.queue("orders").add("anna", "confidential")
            seq = str(tx.id)
        story = json.loads(run_cli("why", "orders", "anna", "--json", url=url))
        assert story["bucket"] == bucket(b"anna", 16)
        assert story["unit"][0] <= story["bucket"] < story["unit"][1]
        assert (story["last_commit"]["seq"], story["last_commit"]["known_by"]) == (seq, "entry")
        assert [one["seq"] for one in story["queued"]] == [seq]
        assert story["not_committed"] == [str(long.id)]
        told = run_cli("why", "orders", "anna", url=url)
        assert "staged, not committed" in told
        assert "confidential" not in told
        opened_by(long).abort()
        report = drain(store, "orders", MemorySink(), sink_name="s", exporter=lambda entry: [entry])
    dead = json.loads(run_cli("why", "orders", "--key-hex", b"anna".hex(), "--json", url=url))
    (letter,) = dead["dead"]
    assert (letter["seq"], letter["drain_id"]) == (seq, report.drain_id)
    assert dead["last_drain"]["drain_id"] == report.drain_id
    assert dead["last_drain"]["dead"] == 1
    assert dead["possible_delivery"] is None, "the drain delivered nothing"
    assert report.drain_id in run_cli("why", "orders", "anna", url=url)
    assert "keys of queue 'orders' have the codec str" in run_cli("why", "orders", "--key-hex", "ff", url=url, status=1)
    assert "which key?" in run_cli("why", "orders", url=url, status=2)


def test_the_program_tells_its_version() -> None:
    assert run_cli("--version", url="") == f"export-queue {version('airflow-provider-export-queue')}\n"


def test_the_program_completes_commands() -> None:
    program = "import sys; sys.argv = ['export-queue']; from export_queue.core.cli import main; main()"
    asked = {"_EXPORT_QUEUE_COMPLETE": "complete_bash", "COMP_WORDS": "export-queue conf", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["configure", "configure-table"], done.stderr
