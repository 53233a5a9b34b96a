"""What many ids in progress or invalid cost those that start, and what they add to a transaction as a value.

A start must know which ids its snapshot does not see. Ten thousand of them are more than any store should have: long
transactions that run, or that timed out and await their pruning.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from tests.support.servers import PostgresServer

from benchmarks.measuring import Figure, Watch, alternate, processor_note, speed
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Store
from export_queue.core.store.schema import active, invalid

IDS = 10_000
START_GOAL = {"sqlite": 1.2, "postgresql": 2.0}
XCOM_BYTES = 1 << 16
"""The largest value that Airflow can hand from task to task on MySQL."""
HOUR_MS = 3_600_000


def run(quick: bool) -> list[Figure]:
    """Measure on both databases."""
    starts, repeats = (20, 2) if quick else (200, 9)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        urls: dict[str, Callable[[str], str]] = {
            "sqlite": lambda name: f"sqlite:///{Path(folder) / name}.db",
            "postgresql": lambda name: server.url(server.create_database()),
        }
        for database, url in urls.items():
            with contextlib.ExitStack() as stack:
                stores = {name: stack.enter_context(_store(url(name), name)) for name in ("none", "active", "invalid")}
                clock = no_server if database == "sqlite" else of_server(server.pid)
                figures += _compare(database, stores, starts, repeats, clock)
    return figures


@contextlib.contextmanager
def _store(url: str, ids: str) -> Iterator[Store]:
    """Open a store with many ids of one kind, which are put there as rows: each of them would have to start."""
    with Store.open(url) as store:
        store.create()
        with store.transaction() as tx:
            tx.table("business").set("a", "status", b"paid")
            last = tx.id
        with store.database.begin() as work:
            now = work.now()
            # Ten milliseconds apart on average; even distances would pack into nothing.
            ages_ms = random.Random(IDS).sample(range(1, 10 * IDS), IDS)
            old = sorted(last - age * 1_000_000 for age in ages_ms)
            if ids == "active":
                work.connection.execute(active.insert(), [_active(number, now) for number in old])
            if ids == "invalid":
                work.connection.execute(invalid.insert(), [{"id": number, "since_ms": now} for number in old])
        yield store


def _active(number: int, now: int) -> dict[str, Any]:
    deadline = now + 10 * HOUR_MS
    return {
        "id": number,
        "request": UUID(int=number),
        "kind": "long",
        "started_ms": number // 1_000_000,
        "deadline_ms": deadline,
        "low": number,
        "owner": number,
        "client": "benchmark",
    }


def _compare(
    database: str, stores: Mapping[str, Store], starts: int, repeats: int, clock: ProcessorClock
) -> Iterator[Figure]:
    for what, work in {"start": _start, "start and read": _start_and_read}.items():

        def contestant(store: Store, work: Callable[[Store], None] = work) -> Callable[[Watch], None]:
            def measured(watch: Watch) -> None:
                with watch.running():
                    for _ in range(starts):
                        work(store)

            return measured

        contestants = {name: contestant(store) for name, store in stores.items()}
        seconds = alternate(contestants, repeats=repeats, server=clock)
        for name in ("active", "invalid"):
            yield Figure(
                bench="start",
                case=f"{database}, {what}, {IDS:,} {name} ids",
                ratio=1 / speed(seconds, name, "none"),
                better="lower",
                goal=START_GOAL[database],
                baseline="no such ids",
                repeats=repeats,
                note=processor_note(seconds, name, "none"),
            )
    sizes = {name: _bytes_as_value(store) for name, store in stores.items()}
    for name in ("active", "invalid"):
        yield Figure(
            bench="start",
            case=f"{database}, transaction as JSON, {IDS:,} {name} ids",
            ratio=sizes[name] / XCOM_BYTES,
            better="lower",
            goal=1.0,
            baseline="64 KiB, the largest XCom value on MySQL",
            repeats=1,
            note=f"{sizes[name]:,} bytes; {sizes['none']:,} with no such ids",
        )


def _start(store: Store) -> None:
    with store.transaction() as tx:
        _ = tx.id


def _start_and_read(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("business").get("a", "status")


class _NotCommitted(Exception):
    """Ends a transaction that was only looked at."""


def _bytes_as_value(store: Store) -> int:
    size = 0
    with contextlib.suppress(_NotCommitted), store.transaction(long=True) as tx:
        size = len(orjson.dumps(tx.to_json()))
        raise _NotCommitted
    return size
