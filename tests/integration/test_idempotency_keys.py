"""A unit of work with an idempotency key takes effect once, also when connections are cut and attempts race (I14)."""

from __future__ import annotations

import datetime
import multiprocessing
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.cuts import DIRECTIONS, Cutter, Truth, fill
from tests.support.proxy import Cut

from export_queue import CommitOutcomeUnknown, ExportQueueError, InvalidArgument, Store, TransactionContext
from export_queue.core.store import schema

fork = multiprocessing.get_context("fork")
UNITS = 12


def race(url: str, seed: int, start: Any, answers: Any) -> None:
    """Run all idempotency keys while the connection is cut here and there; tell what each call returned."""
    chosen = random.Random(seed)
    told: dict[str, list[int]] = {}
    with Cutter.on(url) as cutter:
        for number in range(UNITS):
            idempotency_key = f"unit-{number:03d}"

            def work(tx: TransactionContext, idempotency_key: str = idempotency_key) -> int:
                fill(tx, idempotency_key)
                direction = chosen.choice(DIRECTIONS)
                after = chosen.randrange(900 if direction == "to_server" else 90)
                how = chosen.choice(("reset", "close_half"))
                cutter.proxy.arm(Cut(direction=direction, after=after, how=how))  # type: ignore[arg-type]
                return seed

            start.wait(60)
            for _ in range(20):
                try:
                    told.setdefault(idempotency_key, []).append(cutter.store.run(work, idempotency_key=idempotency_key))
                    break
                except ExportQueueError as error:
                    if not (error.transient or isinstance(error, CommitOutcomeUnknown)):
                        raise
            cutter.proxy.disarm()
    answers.put((seed, told))


def test_two_processes_race_under_one_idempotency_key_with_cuts(postgres_url: str) -> None:
    seeds = [random.randrange(2**30) for _ in range(2)]
    print(f"seeds {seeds}")
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
    start, answers = fork.Barrier(len(seeds)), fork.Queue()
    racers = [fork.Process(target=race, args=(postgres_url, seed, start, answers), daemon=True) for seed in seeds]
    for racer in racers:
        racer.start()
    told = dict(answers.get(timeout=100) for _ in racers)
    for racer in racers:
        racer.join(60)
    truth = Truth(postgres_url)
    for number in range(UNITS):
        idempotency_key = f"unit-{number:03d}"
        assert truth.rows_of(idempotency_key) == (1, 1), idempotency_key
        assert truth.one("select count(*) from xq_idempotency where idempotency_key = %s", idempotency_key) == 1
        stored = int(str(truth.one("select result from xq_idempotency where idempotency_key = %s", idempotency_key)))
        heard = {answer for answers_of in told.values() for answer in answers_of.get(idempotency_key, [])}
        assert heard == {stored}, idempotency_key
    truth.close()


NOT_JSON: dict[str, Callable[[], object]] = {
    "a set": lambda: {1},
    "bytes": lambda: b"x",
    "an object": object,
    "a key that is no text": lambda: {1: "x"},
    "a number that JSON has not": lambda: float("nan"),
    "a number beyond 64 bits": lambda: 2**70,
    "half a character": lambda: "\ud800",
    "a tuple": lambda: (1, 2),
    "a time": lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
}


@pytest.mark.parametrize("what", NOT_JSON)
def test_a_result_that_is_no_json_is_refused_before_anything_is_committed(store: Store, what: str) -> None:
    def work(tx: TransactionContext) -> object:
        tx.table("t").set("a", "n", b"1")
        return NOT_JSON[what]()

    for _ in range(2):
        with pytest.raises(
            InvalidArgument, match="idempotency key 'load/1': its result must be a JSON value"
        ) as refused:
            store.run(work, idempotency_key="load/1")
    assert "lists and dicts" in refused.value.hint
    assert not store.idempotency("load/1").committed
    with store.database.read() as work_:
        for table in (schema.cell, schema.idempotency, schema.outcome, schema.active):
            assert work_.connection.execute(table.select()).all() == []


@pytest.mark.parametrize(
    "result", [None, 0, 1.5, -(2**63), 2**64 - 1, "", "\x00ü\U0001f600", [], {"a": [None, True, {}]}]
)
def test_the_stored_result_is_the_value_that_was_returned(store: Store, result: object) -> None:
    assert store.run(lambda tx: result, idempotency_key="t") == result
    assert store.run(lambda tx: pytest.fail("called again"), idempotency_key="t") == result


def test_a_very_large_result_is_stored_as_a_whole(store: Store) -> None:
    large = [f"{i:07d}" * 10 for i in range(100_000)]
    assert store.run(lambda tx: large, idempotency_key="t") is large
    assert store.run(lambda tx: [], idempotency_key="t") == large


@pytest.mark.parametrize(
    "idempotency_key", ["", "x" * 1025, "a\x00b", 7, pytest.param(10**5000, id="huge"), b"bytes", "\ud800"]
)
def test_a_bad_idempotency_key_is_refused_at_once(store: Store, idempotency_key: Any) -> None:
    with pytest.raises(InvalidArgument, match="idempotency key"):
        store.run(lambda tx: None, idempotency_key=idempotency_key)
    with pytest.raises(InvalidArgument, match="idempotency key"), store.transaction(idempotency_key=idempotency_key):
        pass


def test_the_longest_idempotency_key_is_stored(store: Store) -> None:
    idempotency_key = "ü" * 512
    assert store.run(lambda tx: 1, idempotency_key=idempotency_key) == 1
    assert store.run(lambda tx: 2, idempotency_key=idempotency_key) == 1
