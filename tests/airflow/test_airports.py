"""The example DAG of the airports: three stores equal the data, although one was down for half of the days."""

from __future__ import annotations

import importlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.elasticsearch import VERSIONS
from tests.support.servers import free_port

pytest.importorskip("vega_datasets", reason="vega_datasets is missing: ./run setup installs it")

Airports = dict[str, dict[str, str]]


class Days:
    """What the source of airports tells, day by day."""

    def __init__(self, airports: Airports) -> None:
        self.now = airports
        self.closed: Airports = {}

    def rename(self, *codes: str) -> None:
        for code in codes:
            self.now = {**self.now, code: {**self.now[code], "name": f"{self.now[code]['name']} (renamed)"}}

    def close(self, *codes: str) -> None:
        self.closed |= {code: self.now[code] for code in codes}
        self.now = {code: airport for code, airport in self.now.items() if code not in codes}

    def reopen(self, *codes: str) -> None:
        self.now = {**self.now, **{code: self.closed.pop(code) for code in codes}}


@pytest.mark.full("four runs of a DAG with three sinks, and a server of Elasticsearch")
@pytest.mark.parametrize("elasticsearch_server", [*VERSIONS][:1], indirect=True)
def test_three_stores_equal_the_airports_with_one_down_for_half_of_the_days(
    store_path: Path,
    run_dag: Any,
    connect: Any,
    redis_server: Any,
    redis_client: Any,
    elasticsearch_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from export_queue import Retry, Store

    monkeypatch.setattr(Retry, "pause", lambda retry, attempt: 0.01)  # a store that is down is asked nine times
    module = importlib.import_module("export_queue.dags_examples.airports")
    days = Days(module.current_airports())
    assert len(days.now) == 3376
    monkeypatch.setattr(module, "current_airports", lambda: days.now)
    search = elasticsearch_server
    connect(
        "search_default",
        conn_type="elasticsearch",
        host=search.host,
        port=search.port,
        login=search.user,
        password=search.password,
    )
    connect("reports_default", conn_type="sqlite", host=str(tmp_path / "reports.db"))

    def run_a_day(*, cache_is_up: bool) -> dict[str, str]:
        redis_port = redis_server.port if cache_is_up else free_port()
        connect(
            "cache_default",
            conn_type="redis",
            host=redis_server.host,
            port=redis_port,
            password=redis_server.password,
        )
        dag = module.airports()
        for task in dag.tasks:
            task.retries = 0
        return dict(run_dag(dag).states())

    def in_search() -> Airports:
        search.request("POST", "/airports/_refresh")
        _, answer = search.request("POST", "/airports/_search", {"size": 5000})
        found = answer["hits"]["hits"]
        return {hit["_id"]: {name: hit["_source"][name] for name in hit["_source"] if name in FIELDS} for hit in found}

    def in_cache() -> Airports:
        keys = list(redis_client.scan_iter("airports:*", count=1000))
        return {key.decode().partition(":")[2]: json.loads(redis_client.get(key)) for key in keys}

    def in_reports() -> Airports:
        rows = sqlite3.connect(tmp_path / "reports.db").execute("SELECT id, document FROM airports_live").fetchall()
        return {code: json.loads(document) for code, document in rows}

    FIELDS = set(days.now["JFK"])
    up = {"set_up": "success", "update": "success", "search": "success", "cache": "success", "reports": "success"}
    assert run_a_day(cache_is_up=True) == up
    assert in_cache() == in_search() == in_reports() == days.now

    days.rename("JFK", "ORD")
    days.close("LAX", "SFO", "BOS")
    assert run_a_day(cache_is_up=False) == {**up, "cache": "failed"}
    assert in_search() == in_reports() == days.now, "a store that is down holds up no other"
    days.reopen("LAX")
    days.rename("JFK")
    assert run_a_day(cache_is_up=False) == {**up, "cache": "failed"}
    assert in_search() == in_reports() == days.now
    assert in_cache() != days.now

    days.close("JFK")
    days.reopen("SFO")
    days.rename("LAX")
    assert run_a_day(cache_is_up=True) == up
    assert in_cache() == in_search() == in_reports() == days.now
    with Store.open(f"sqlite:///{store_path}") as store:
        assert [store.backlog(f"airports/{name}") for name in module.READERS] == [[], [], []]
        with store.transaction(read_only=True) as tx:
            assert {iata: airport for iata, _, airport in tx.table("airports").scan()} == days.now
