"""A monitoring system's own parser reads what ``export-queue metrics`` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.command_line import run_cli

from export_queue import ConflictError, MemorySink, Put, Store, drain
from export_queue.core.maintenance import Metric, Sample, read_metrics, render
from export_queue.core.transactions import Counters

parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="needs the extra test")


def parsed(text: str) -> Mapping[str, Any]:
    """Return metric families by name; the parser is strict about order, types, suffixes and escapes."""
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def by_label(family: Any, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in family.samples}


@pytest.fixture
def airports(store: Store) -> Store:
    """A queue with two readers, one of which refuses an entry, and a queue that is idle."""
    store.configure_queue("airports", subscriptions=["cache", "search"])
    store.configure_queue("idle")
    store.run(lambda tx: tx.queue("airports").add_many([("OSL", "Oslo"), ("CPH", "Copenhagen"), ("BSL", "Basel")]))

    def refuse_oslo(entry: Any) -> Any:
        if entry.key == "OSL":
            raise ValueError("no")
        return [Put("airports", entry.key, entry.value)]

    drain(store, "airports/search", MemorySink(), sink_name="search", exporter=refuse_oslo)
    return store


def test_the_output_of_the_command_is_openmetrics(airports: Store, store_url: str) -> None:
    families = parsed(run_cli("metrics", url=store_url))
    assert {family.type for family in families.values()} == {"gauge"}
    entries = by_label(families["export_queue_queue_entries"], "queue")
    assert (entries["airports/cache"], entries["airports/search"]) == (3, 0)
    assert by_label(families["export_queue_dead_letters"], "queue") == {
        "airports/cache": 0,
        "airports/search": 1,
        "idle": 0,
    }
    assert by_label(families["export_queue_last_drain_failed"], "queue") == {
        "airports/cache": 0,
        "airports/search": 0,
        "idle": 0,
    }
    assert by_label(families["export_queue_active_transactions"], "kind") == {"short": 0, "long": 0}


def test_the_text_has_the_values_of_the_json(airports: Store, store_url: str) -> None:
    families = parsed(run_cli("metrics", url=store_url))
    listed = json.loads(run_cli("metrics", "--json", url=store_url))
    assert [metric["name"] for metric in listed] == list(families)
    for metric in listed:
        family = families[metric["name"]]
        assert (family.type, family.documentation) == (metric["kind"], metric["help"])
        assert [sample.labels for sample in family.samples] == [sample["labels"] for sample in metric["samples"]]
        if not metric["name"].endswith("_seconds"):  # ages grow between the two commands
            assert [sample.value for sample in family.samples] == [sample["value"] for sample in metric["samples"]]


def test_counters_of_a_process_are_openmetrics(airports: Store) -> None:
    counters = Counters()
    for seconds in (0.002, 0.2, 99):
        counters.committed("short", seconds)
    counters.refused("short", ConflictError)
    families = parsed(render(read_metrics(airports.database, counters=counters)))
    (refusal,) = families["export_queue_refusals"].samples
    assert (refusal.name, refusal.labels, refusal.value) == (
        "export_queue_refusals_total",
        {"kind": "short", "error": "ConflictError"},
        1,
    )
    histogram = families["export_queue_commit_seconds"]
    (total,) = [sample.value for sample in histogram.samples if sample.labels.get("le") == "+Inf"]
    (count,) = [sample.value for sample in histogram.samples if sample.name.endswith("_count")]
    (taken,) = [sample.value for sample in histogram.samples if sample.name.endswith("_sum")]
    assert (histogram.type, total, count, taken) == ("histogram", 3, 3, 99.202)


@pytest.mark.parametrize(
    "text", ['a "quoted" name', "a\\b", "a\\nb", "two\nlines", "ends with \\", '\\"', "Zürich 空港", "{a=b} # EOF", ""]
)
def test_a_label_and_a_help_text_come_back_as_they_were(text: str) -> None:
    """No queue has such a name; a program that renders its own metrics may have such labels."""
    metric = Metric(
        "m", "gauge", f"help {text}", (Sample(1.5, {"client": text, "other": "b"}), Sample(2, {"client": "c"}))
    )
    family = parsed(render([metric]))["m"]
    assert family.documentation == f"help {text}"
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"client": text, "other": "b"}, 1.5),
        ({"client": "c"}, 2),
    ]
