"""Benchmarks run in their small size, some in each run, so that they cannot rot; their speed is not judged here."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.outbox import ROWS, create, key_of, outbox
from benchmarks.peers.environment import prepare
from benchmarks.processor import of_programs_below, of_server, of_tree
from tests.support.drawn import drawn
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.servers import PostgresServer

ROOT = Path(__file__).parents[2]
FILES = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks").glob("*/__init__.py")]
RUNNABLE = [path for path in FILES if "\ndef run(quick: bool)" in path.read_text()]
NAMES = sorted(path.parent.name if path.stem == "__init__" else path.stem for path in RUNNABLE)
AT_ONCE = 2
"""How many of the benchmarks each run takes."""
OWN_SERVERS = {"elasticsearch": ElasticsearchServer, "peers": prepare, "sql": MariaDbServer}
"""What says by a FileNotFoundError that something is missing, where that is not PostgreSQL."""
PAGE = (ROOT / "docs" / "performance.md").read_text()


def test_there_are_benchmarks() -> None:
    assert {"commit", "drain", "elasticsearch", "growth", "load", "peers", "reads", "redis", "sql", "start"} <= set(
        NAMES
    )


def test_the_page_has_a_place_for_every_benchmark() -> None:
    assert sorted(re.findall(r"<!-- figures of (\w+) -->", PAGE)) == NAMES


def test_the_outbox_changes_its_row_each_time(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    create(f"sqlite:///{path}")
    found = set()
    with outbox(f"sqlite:///{path}") as step, sqlite3.connect(path) as reader:
        for number in (5, 5 + ROWS, 5 + 2 * ROWS):
            step(number)
            found |= {*reader.execute("select status from business where id = ?", (key_of(5),))}
    assert len(found) == 3


def test_the_processor_time_of_a_server_is_that_of_its_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        clock = of_server(os.getpid())
        before, limit = clock(), time.monotonic() + 60
        while clock() - before < 0.02 and time.monotonic() < limit:
            time.sleep(0.005)
        used = clock() - before
        child.kill()
    assert used >= 0.02


TICKS = os.sysconf("SC_CLK_TCK")  # a second; processor times are whole numbers of them, which seconds are not
BURN = "import time\nwhile time.process_time() < 0.1: pass\n"


def test_the_processor_time_of_a_tree_has_what_ended_in_between_and_tells_programs_apart() -> None:
    waits = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # its own child has ended
        program = Path(f"/proc/{child.pid}/comm").read_text().strip()
        tree = of_tree(child.pid)()
        named, others = of_programs_below(os.getpid(), apart=program)
        all_others = of_programs_below(os.getpid(), apart="another")
        child.communicate(b"\n")
    assert tree >= 0.09
    assert named >= 0.09
    assert all_others[0] == 0
    assert round(all_others[1] * TICKS) >= round((named + others) * TICKS)


@pytest.mark.full("a benchmark starts its own servers and takes up to half a minute")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", drawn(NAMES, AT_ONCE, about="benchmarks"))
def test_a_benchmark_prints_one_figure_a_line(name: str, postgres_server: object, redis_server: object) -> None:
    if name == "load" and not Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark")).exists():
        pytest.skip("Spark is missing: ./run setup builds .venv-spark")
    try:
        OWN_SERVERS.get(name, PostgresServer)()  # not started: the benchmark has its own
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    figures = [line for line in lines if "ratio" in line]
    assert figures
    for figure in figures:
        assert figure["bench"] == name
        assert figure["ratio"] > 0
        assert figure["better"] in ("lower", "higher")
        assert figure["baseline"]
        assert (figure["ok"] is None) == (figure["goal"] is None)
    assert len({figure["case"] + figure["baseline"] for figure in figures}) == len(figures)
    outcomes = [line for line in lines if "became" in line]
    assert len(figures) + len(outcomes) == len(lines)
    assert all(outcome["bench"] == name and outcome["became"] for outcome in outcomes)
    if name == "peers":
        drains = [outcome["became"] for outcome in outcomes if outcome["way"].startswith("drain")]
        assert drains
        assert not [became for became in drains if "older" in became or "more than once" in became or "back" in became]
