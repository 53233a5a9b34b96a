"""Every store against a plain recount of the input."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from demo import settings
from demo.naive import NAIVE_DATABASE, redis_client
from demo.year import recount

SAMPLES = 5
"""Wrong records of a store that are named."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one store compares with the recount."""

    store: str
    exported_by: str
    records: int
    missing: int
    extra: int
    different: int
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Some records that are not as they should be: what they should be, and what they are."""

    @property
    def wrong(self) -> int:
        """Number of records that are not as they should be."""
        return self.missing + self.extra + self.different

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def compare(store: str, exported_by: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Verdict:
    """Count what is missing, extra and different."""
    wrong = [key for key in sorted(expected.keys() | found.keys()) if expected.get(key) != found.get(key)]
    return Verdict(
        store,
        exported_by,
        records=len(found),
        missing=len(expected.keys() - found.keys()),
        extra=len(found.keys() - expected.keys()),
        different=sum(expected[key] != found[key] for key in expected.keys() & found.keys()),
        samples=[
            {"record": key, "expected": expected.get(key, "nothing"), "found": found.get(key, "nothing")}
            for key in wrong[:SAMPLES]
        ],
    )


def prove() -> list[Verdict]:
    """Read every store and compare it with the recount of the CSV."""
    statuses = recount()
    index = {f"{status['flights']:06}/{aircraft}": status["flights"] for aircraft, status in statuses.items()}
    queue = "export queue"
    return [
        compare("index in SQLite", queue, index, _sqlite_index()),
        compare("index in Redis", queue, index, _redis_index(0)),
        compare("statuses in SQLite", queue, statuses, _sqlite_statuses()),
        compare("statuses in Redis", queue, statuses, _redis_statuses()),
        compare("index in Redis", "broken observer", index, _redis_index(NAIVE_DATABASE)),
    ]


def _sqlite_rows(statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(settings.copies())
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def _sqlite_index() -> dict[str, int]:
    return dict(_sqlite_rows("select id, flights from count_index_live"))


def _sqlite_statuses() -> dict[str, Any]:
    rows = _sqlite_rows("select id, aircraft, flights, last from aircraft_live")
    return {key: {"aircraft": a, "flights": n, "last": json.loads(last)} for key, a, n, last in rows}


def _redis_index(database: int) -> dict[str, int]:
    with redis_client(database) as client:
        sets = sorted(client.scan_iter("count:*", count=1000))
        return {
            f"{key.decode().removeprefix('count:')}/{member.decode()}": int(key.decode().removeprefix("count:"))
            for key in sets
            for member in client.smembers(key)
        }


def _redis_statuses() -> dict[str, Any]:
    with redis_client(0) as client:
        keys = sorted(client.scan_iter("aircraft:*", count=1000))
        documents = client.mget(keys) if keys else []
    return {
        key.decode().removeprefix("aircraft:"): json.loads(document)
        for key, document in zip(keys, documents, strict=True)
    }
