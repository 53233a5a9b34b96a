"""Each benchmark runs, in its small size, so that it cannot rot; how fast it says we are is not judged here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.servers import PostgresServer

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef run(quick: bool)" in path.read_text())
OWN_SERVERS = {"elasticsearch": ElasticsearchServer, "sql": MariaDbServer}
PAGE = (ROOT / "docs" / "performance.md").read_text()


def test_there_are_benchmarks() -> None:
    assert {"commit", "drain", "elasticsearch", "growth", "reads", "redis", "sql", "start"} <= set(NAMES)


def test_the_page_has_a_place_for_every_benchmark() -> None:
    assert sorted(re.findall(r"<!-- figures of (\w+) -->", PAGE)) == NAMES


@pytest.mark.full("a benchmark starts its own servers and takes up to half a minute")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_one_figure_a_line(name: str, postgres_server: object, redis_server: object) -> None:
    try:
        OWN_SERVERS.get(name, PostgresServer)()  # not started: the benchmark has its own
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert figures
    for figure in figures:
        assert figure["bench"] == name
        assert figure["ratio"] > 0
        assert figure["better"] in ("lower", "higher")
        assert figure["baseline"]
        assert (figure["ok"] is None) == (figure["goal"] is None)
    assert len({figure["case"] + figure["baseline"] for figure in figures}) == len(figures)
