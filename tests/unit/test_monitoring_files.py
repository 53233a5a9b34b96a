"""The alert rules and the dashboard ask for metrics, labels, commands and pages that exist, and alerts fire."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_links import anchors
from tests.unit.test_remedies import parse

from export_queue import Store
from export_queue.core.maintenance import read_metrics

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "docs" / "monitoring" / "alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((ROOT / "docs" / "monitoring" / "grafana.json").read_text())
NAME = re.compile(r"export_queue_\w+")


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric, of a store in which each has a sample."""
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.db'}") as store:
        store.create()
        store.configure_queue("orders", subscriptions=["cache"])
        store.run(lambda tx: tx.queue("orders").add("anna", 1))
        store.subscribe("orders", "search")
        with store.transaction(long=True) as tx:
            assert tx.id  # it has begun
            metrics = read_metrics(store.database)
    assert all(metric.samples for metric in metrics)
    return {metric.name: {label for sample in metric.samples for label in sample.labels} for metric in metrics}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_what_exists(rule: dict[str, Any], labels: dict[str, set[str]]) -> None:
    (name,) = NAME.findall(rule["expr"])
    assert name in labels
    notes = rule["annotations"]
    assert {"summary", "description", "command", "page"} == set(notes)
    for text in notes.values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels[name]
    program, *words = shlex.split(re.sub(r"\{\{.*?\}\}", "orders", notes["command"]))
    assert program == "export-queue"
    parse(words)
    path, _, anchor = notes["page"].partition("#")
    assert not anchor or anchor in anchors(ROOT / path)
    assert (ROOT / path).exists()


def test_the_dashboard_asks_for_what_exists(labels: dict[str, set[str]]) -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            for name in NAME.findall(target["expr"]):
                assert name in labels
                assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels[name]
            assert set(re.findall(r"[{,](\w+)=~", target["expr"])) <= {"queue"}


def test_prometheus_accepts_the_rules_and_fires_them(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus): Prometheus itself has not read the rules")
    too_high = {NAME.findall(rule["expr"])[0] for rule in RULES if "absent" not in rule["expr"]}
    series = [{"series": f'{name}{{queue="orders",kind="long"}}', "values": "100000x180"} for name in too_high]
    cases = [(series, [rule for rule in RULES if "absent" not in rule["expr"]])]
    cases.append(([], [rule for rule in RULES if "absent" in rule["expr"]]))
    tests = [
        {"interval": "1m", "input_series": given, "alert_rule_test": [fired(rule, bool(given)) for rule in rules]}
        for given, rules in cases
    ]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(tmp_path / "test.yml")]):
        told = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stdout + told.stderr


def fired(rule: dict[str, Any], has_labels: bool) -> dict[str, Any]:
    """Say what a rule must tell after two hours."""
    filled = {
        "{{ $labels.queue }}": "orders",
        "{{ $labels.kind }}": "long",
        "{{ $value | humanizeDuration }}": "1d 3h 46m 40s",
        "{{ $value }}": "100000",
    }
    labels = {"queue": "orders", "kind": "long"} if has_labels else {}
    notes = {
        name: re.sub(r"\{\{.*?\}\}", lambda hole: filled[hole[0]], text) for name, text in rule["annotations"].items()
    }
    alert = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": notes}
    return {"eval_time": "2h", "alertname": rule["alert"], "exp_alerts": [alert]}
