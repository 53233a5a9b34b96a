"""The demo as a user runs it, on a few days of each month: every store right, no password anywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from demo.proof import compare
from demo.report import write_report

ROOT = Path(__file__).parents[2]
LIMIT = 420


def descendants(pid: int) -> set[int]:
    """Process ids below a process, those that changed their parent left out."""
    found, parents = {pid}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    grown = True
    while grown:
        grown = False
        for child, parent in parents.items():
            if parent in found and child not in found:
                found.add(child)
                grown = True
    return found


def command_lines() -> set[bytes]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.add((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def password_of(pid: int) -> str | None:
    """The Redis password, from the environment of the processes that need it."""
    for child in descendants(pid) - {pid}:
        try:
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"EXPORT_QUEUE_DEMO_REDIS_PASSWORD="):
                return variable.partition(b"=")[2].decode() or None
    return None


@pytest.mark.full("the whole demo")
@pytest.mark.timeout(LIMIT + 60)
def test_the_demo_proves_every_store_and_shows_no_password(tmp_path: Path) -> None:
    if not (ROOT / ".venv-spark" / "bin" / "spark-submit").exists():
        pytest.skip("Spark is missing: ./run setup builds .venv-spark")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    environment |= {"EXPORT_QUEUE_DEMO_DAYS": "1", "EXPORT_QUEUE_SPARK_HOME": str(ROOT / ".venv-spark")}
    command = [sys.executable, "-P", "-m", "demo"]
    seen: set[bytes] = set()
    password = None
    with (tmp_path / "output").open("w+b") as output:
        demo = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            for _ in range(LIMIT * 5):
                seen |= command_lines()
                password = password or password_of(demo.pid)
                try:
                    demo.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            demo.terminate()
            demo.wait(60)
        output.seek(0)
        text = output.read().decode()
    assert demo.returncode == 0, text
    assert "wrong records: export queue 0, broken observer" in text
    verdicts = json.loads((tmp_path / ".demo" / "verdicts.json").read_bytes())
    ours = [verdict for verdict in verdicts if verdict["exported_by"] == "export queue"]
    assert len(ours) == 4
    for verdict in ours:
        assert verdict["records"] > 1000
        assert verdict["missing"] == verdict["extra"] == verdict["different"] == 0
    naive = next(verdict for verdict in verdicts if verdict["exported_by"] == "broken observer")
    assert naive["missing"] + naive["extra"] + naive["different"] > 0
    assert (tmp_path / ".demo" / "drain-has-died").exists()
    page = (tmp_path / ".demo" / "report.html").read_text()
    assert f"==> the stores, the damage and the kills on one page: file://{tmp_path}/.demo/report.html" in text
    assert page.count(">equal<") == 4
    assert "the drain was killed" in page

    assert password is not None
    secret = password.encode()
    assert any(b"job_main" in line for line in seen), "no Spark driver was seen"
    assert not [line for line in seen if secret in line], "a command line shows the password"
    assert password not in text
    holding = [file for file in (tmp_path / ".demo").rglob("*") if file.is_file() and secret in file.read_bytes()]
    assert holding == [], "logs, rendered templates and databases hold no password"


def test_a_store_that_differs_is_found() -> None:
    verdict = compare("store", "somebody", {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5})
    assert (verdict.records, verdict.missing, verdict.extra, verdict.different, verdict.wrong) == (3, 1, 1, 1, 3)
    assert verdict.samples == [
        {"record": "a", "expected": 1, "found": "nothing"},
        {"record": "c", "expected": 3, "found": 4},
        {"record": "d", "expected": "nothing", "found": 5},
    ]


def test_the_page_of_a_run_shows_stores_damage_and_kills(tmp_path: Path) -> None:
    right = compare("index", "export queue", {"a": 1}, {"a": 1})
    wrong = compare("index", "broken observer", {}, {"<b>": "<i>"})
    (tmp_path / "verdicts.json").write_text(json.dumps([right.to_dict(), wrong.to_dict()]))
    noted = [("writers", "0 writers killed"), ("drain", ""), ("writers", "2 writers killed"), ("drain", "failed")]
    lines = [
        {"at": 100.0 + i, "step": step, "done": 0, "total": 1, "note": note} for i, (step, note) in enumerate(noted)
    ]
    (tmp_path / "progress").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report(tmp_path).read_text()
    assert (page.count(">equal<"), page.count(">1 wrong<")) == (1, 1)
    assert "<td>&lt;b&gt;</td><td>nothing</td><td>&lt;i&gt;</td>" in page
    assert "2.0 s: writer number 2 of this step was killed" in page
    assert "3.0 s: the drain was killed" in page
    assert page.count('class="kill"') == 2
    assert not re.search("https?:|<script", page)
