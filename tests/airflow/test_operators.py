"""The operators that need no Spark: configuring a queue and draining it in the worker; good input and bad."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated
from tests.support.command_line import run_cli
from tests.support.servers import free_port
from tests.support.task_timeouts import end_the_time_of_airflow

from export_queue import (
    ConfigurationError,
    DeadLettersLeft,
    DrainTimedOut,
    HasSubscriptions,
    InvalidArgument,
    LockNotAvailable,
    MemorySink,
    OptionsDiffer,
    Owner,
    Put,
    Retry,
    SinkBindingError,
    SinkConfigurationError,
    SinkUnavailable,
    Store,
    StoreNotCreated,
    UnknownQueue,
    drain,
)
from export_queue.assets import queue_asset
from export_queue.core.arguments import parse_ranges
from export_queue.core.drain import DrainRequest
from export_queue.core.locks import claim
from export_queue.hooks.connections import MissingConnection
from export_queue.hooks.tasks import task_name
from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueRebuildOperator,
    ExportQueueReplayOperator,
    ExportQueueVerifyOperator,
)

NOON = {"logical_date": datetime(2026, 1, 1, 12, tzinfo=UTC), "run_after": datetime(2026, 1, 1, 12, tzinfo=UTC)}
"""The same arguments name the same run: running it again is what clearing its tasks does."""


@pytest.fixture
def run_task(run_dag: Any) -> Callable[..., Any]:
    """Run one operator in a DAG of its own; returns its result, or raises its error."""

    def run(operator: type[Any], **arguments: Any) -> Any:
        with DAG("one_task", schedule=None, render_template_as_native_obj=False) as dag:
            operator(task_id="it", **arguments)
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


@pytest.fixture
def copies(connect: Any, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """The connection ``copies`` to an SQLite file; returns a function that reads the table ``orders`` of it."""
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))

    def read() -> dict[str, Any]:
        rows = sqlite3.connect(tmp_path / "copies.db").execute("SELECT id, document FROM orders_live").fetchall()
        return {key: json.loads(document) for key, document in rows}

    return read


def add(store: Any, count: int, *, start: int = 0) -> None:
    with store.transaction() as tx:
        for i in range(start, start + count):
            tx.queue("orders").add(f"customer {i}", {"total": i})


# -- configuring -------------------------------------------------------------------------------------------------------


def test_configuring_creates_store_and_queue(store_path: Path, run_task: Any) -> None:
    for _ in range(2):
        result = run_task(ExportQueueConfigureOperator, queue_id="orders", buckets="{{ 10 }}", buckets_per_range=4)
        assert result == {"queue": "orders", "buckets": 10, "units": [[0, 4], [4, 8], [8, 10]]}
    assert store_path.exists()


def test_other_options_for_an_existing_queue_are_listed(airflow_store: Any, run_task: Any) -> None:
    with pytest.raises(OptionsDiffer, match=r"buckets: expected 7, found 1009"):
        run_task(ExportQueueConfigureOperator, queue_id="orders", buckets=7, buckets_per_range=7)


@pytest.mark.parametrize("queue_id", ["Orders", "-a", "a..b", "", "x" * 65])
def test_a_bad_queue_id_is_refused(airflow_store: Any, run_task: Any, queue_id: str) -> None:
    with pytest.raises(InvalidArgument, match="queue.id"):
        run_task(ExportQueueConfigureOperator, queue_id=queue_id)


def test_a_queue_with_subscriptions_is_configured(airflow_store: Any, run_task: Any) -> None:
    for _ in range(2):
        run_task(ExportQueueConfigureOperator, queue_id="airports", subscriptions=["search", "{{ 'cache' }}"])
    assert [reader.name for reader in airflow_store.subscriptions("airports")] == ["cache", "search"]


def test_one_more_subscription_is_added_with_its_first_load(airflow_store: Any, run_task: Any) -> None:
    def configure(*names: str, **more: Any) -> None:
        run_task(ExportQueueConfigureOperator, queue_id="airports", subscriptions=[*names], state=True, **more)

    configure("search")
    airflow_store.run(lambda tx: tx.queue("airports").add("OSL", "Oslo"))
    drain(airflow_store, "airports/search", MemorySink(), sink_name="search")
    for _ in range(2):
        configure("search", "cache")
        cache = airflow_store.queue("airports/cache")
        assert (cache.first_load, [one.position.key for one in airflow_store.peek("airports/cache")]) == (
            "made",
            [b"OSL"],
        )
    with pytest.raises(OptionsDiffer, match=r"expected \['reports', 'search'\], found \['cache', 'search'\]"):
        configure("search", "reports")
    with pytest.raises(OptionsDiffer, match="value: expected 'str', found 'json'"):
        configure("search", "cache", "reports", value="str")
    assert len(airflow_store.subscriptions("airports")) == 2


def test_without_a_state_the_first_load_needs_a_source(airflow_store: Any, run_task: Any, capfd: Any) -> None:
    def configure(*names: str, **more: Any) -> None:
        run_task(ExportQueueConfigureOperator, queue_id="airports", subscriptions=[*names], **more)

    configure("search")
    configure("search", "reports")
    assert airflow_store.queue("airports/reports").first_load == "missing"
    assert "airports/reports lacks what was added before it" in "".join(capfd.readouterr())
    with pytest.raises(InvalidArgument, match="no_such_function"):
        configure("search", "reports", first_load=f"{__name__}:no_such_function")
    assert airflow_store.queue("airports/reports").first_load == "missing"
    configure("search", "reports", first_load=f"{__name__}:old_airports")
    assert airflow_store.queue("airports/reports").first_load == "made"
    assert [one.position.key for one in airflow_store.peek("airports/reports")] == [b"OSL"]


def old_airports() -> list[tuple[str, Any]]:
    return [("OSL", "Oslo")]


def test_a_queue_without_subscriptions_gets_none_by_itself(airflow_store: Any, run_task: Any) -> None:
    with pytest.raises(OptionsDiffer, match="other subscriptions"):
        run_task(ExportQueueConfigureOperator, queue_id="orders", subscriptions=["search"])
    assert airflow_store.subscriptions("orders") == []


def test_an_unknown_codec_names_those_that_exist(airflow_store: Any, run_task: Any) -> None:
    with pytest.raises(InvalidArgument, match="json"):
        run_task(ExportQueueConfigureOperator, queue_id="other", value="xml")


def test_tables_are_configured_beside_the_queue(store_path: Path, run_task: Any) -> None:
    tables = {"totals": {"row": "str", "value": "int"}, "seen": {"ttl": 60}}
    for _ in range(2):
        run_task(ExportQueueConfigureOperator, queue_id="orders", tables=tables)
    with Store.open(f"sqlite:///{store_path}") as store, store.transaction() as tx:
        tx.table("totals").set("anna", "n", 3)
        assert list(tx.table("totals").scan()) == [("anna", "n", 3)]
    with pytest.raises(OptionsDiffer, match="value: expected 'json', found 'int'"):
        run_task(ExportQueueConfigureOperator, queue_id="orders", tables={"totals": {"row": "str", "value": "json"}})


def test_without_create_store_a_missing_store_is_an_error(store_path: Path, run_task: Any) -> None:
    with pytest.raises(StoreNotCreated):
        run_task(ExportQueueConfigureOperator, queue_id="orders", create_store=False)


# -- draining ----------------------------------------------------------------------------------------------------------


def test_a_drain_brings_everything_into_the_sink_and_reports(airflow_store: Any, run_task: Any, copies: Any) -> None:
    add(airflow_store, 20)
    result = run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies")
    assert result["read"] == result["acknowledged"] == result["written"] == 20
    assert result["left"] == result["dead"] == 0
    assert json.loads(json.dumps(result)) == result
    assert copies() == {f"customer {i}": {"total": i} for i in range(20)}
    assert airflow_store.backlog("orders") == []
    (stored,) = airflow_store.reports(queue_id="orders")
    assert stored == result
    assert stored["drain_id"].startswith("one_task/manual__")


def test_a_drain_of_a_subscription_leaves_the_other_ones(airflow_store: Any, run_task: Any, copies: Any) -> None:
    airflow_store.configure_queue("airports", subscriptions=["search", "cache"])
    with airflow_store.transaction() as tx:
        tx.queue("airports").add("BRS", {"total": 1})
    drained = {"sink_conn_id": "copies", "sink_options": {"table": "orders"}}
    result = run_task(ExportQueueDrainOperator, queue_id="airports/search", **drained)
    assert (result["queue"], result["written"]) == ("airports/search", 1)
    assert copies() == {"BRS": {"total": 1}}
    assert len(airflow_store.backlog("airports/cache")) == 1
    with pytest.raises(HasSubscriptions, match="airports/cache, airports/search"):
        run_task(ExportQueueDrainOperator, queue_id="airports", **drained)


def test_an_asset_stands_for_a_queue_or_for_a_subscription() -> None:
    assert queue_asset("airports/search").uri == "export-queue://export_queue_default/airports/search"
    assert queue_asset("airports").uri == "export-queue://export_queue_default/airports"
    for wrong in ("", "a/b/c", "a/", "/a"):
        with pytest.raises(ValueError, match="subscription"):
            queue_asset(wrong)


def test_arguments_are_templated(airflow_store: Any, run_task: Any, copies: Any, monkeypatch: Any) -> None:
    add(airflow_store, 20)
    for name, value in {"QUEUE": "orders", "RANGES": "[[0, 101]]", "TABLE": "$collection"}.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{name}", value)
    result = run_task(
        ExportQueueDrainOperator,
        queue_id="{{ var.value.queue }}",
        sink_conn_id="{{ 'copies' }}",
        sink_options={"table": "{{ var.value.table }}"},
        ranges="{{ var.value.ranges }}",
        if_locked="{{ 'fail' }}",
        max_dead="{{ 5 }}",
        time_limit="{{ 600 }}",
    )
    assert result["ranges"] == [[0, 101]]
    assert 0 < result["acknowledged"] < 20


def test_draining_nothing_is_a_success(airflow_store: Any, run_task: Any, copies: Any) -> None:
    for ranges in (None, []):
        result = run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies", ranges=ranges)
        assert result["read"] == result["left"] == 0


def test_a_drain_whose_time_is_over_is_retried(airflow_store: Any, run_task: Any, copies: Any) -> None:
    add(airflow_store, 20)
    with pytest.raises(DrainTimedOut) as caught:
        run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies", time_limit="0.000001")
    assert not isinstance(caught.value, AirflowFailException)


@pytest.fixture
def picky(airflow_store: Any, copies: Any, tmp_path: Path, monkeypatch: Any) -> dict[str, Any]:
    """A drain of five entries, one of which its exporter refuses."""
    (tmp_path / "own_exporters.py").write_text(
        "from export_queue.core.sinks import Put\n"
        "def picky(entry):\n"
        "    if entry.value['total'] == 3: raise ValueError('no threes')\n"
        "    yield Put('orders', entry.key, entry.value)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    add(airflow_store, 5)
    return {"queue_id": "orders", "sink_conn_id": "copies", "exporter": "own_exporters:picky"}


def test_dead_letters_fail_the_task_without_a_retry_after_everything_else_was_delivered(
    airflow_store: Any, run_task: Any, picky: dict[str, Any]
) -> None:
    said = r"^orders: 1 dead letters; allowed: 0; everything else was delivered; the oldest: ValueError: no threes"
    with pytest.raises(DeadLettersLeft, match=said) as caught:
        run_task(ExportQueueDrainOperator, **picky)
    assert isinstance(caught.value, AirflowFailException)
    assert "export-queue dead list orders" in str(caught.value)
    assert "4 acknowledged + 1 dead" in "".join(caught.value.__notes__)
    assert airflow_store.dead_letters.list("orders")[0].reason == "no threes"
    assert sum(unit.entries for unit in airflow_store.backlog("orders")) == 0
    with pytest.raises(DeadLettersLeft):  # those of earlier drains count too: the sink is still stale
        run_task(ExportQueueDrainOperator, **picky)
    airflow_store.dead_letters.drop("orders", who="test")
    assert run_task(ExportQueueDrainOperator, **picky)["dead"] == 0


@pytest.mark.parametrize("allowed", ["allow", 1, "{{ 1 }}", "{{ 'allow' }}"])
def test_dead_letters_may_be_allowed(run_task: Any, picky: dict[str, Any], allowed: Any) -> None:
    result = run_task(ExportQueueDrainOperator, **picky, dead_letters=allowed)
    assert (result["acknowledged"], result["dead"]) == (4, 1)


def test_of_a_drain_of_ranges_only_their_dead_letters_count(
    airflow_store: Any, run_task: Any, picky: dict[str, Any]
) -> None:
    run_task(ExportQueueDrainOperator, **picky, dead_letters="allow")
    bucket = airflow_store.dead_letters.list("orders")[0].position.bucket
    units = airflow_store.queue("orders").units()
    (hit,) = [unit for unit in units if unit.first <= bucket < unit.end]
    others = [unit.to_json() for unit in units if unit != hit]
    assert run_task(ExportQueueDrainOperator, **picky, ranges=others)["dead"] == 0
    with pytest.raises(DeadLettersLeft):
        run_task(ExportQueueDrainOperator, **picky, ranges=[hit.to_json()])


@pytest.mark.parametrize("value", ["maybe", -1, 1.5, True])
def test_dead_letters_are_allowed_in_words_or_numbers(run_task: Any, picky: dict[str, Any], value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r'^dead_letters: expected "fail", "allow" or a whole number'):
        run_task(ExportQueueDrainOperator, **picky, dead_letters=value)


def test_a_range_that_is_locked_is_waited_for_skipped_or_an_error(
    airflow_store: Any, run_task: Any, copies: Any
) -> None:
    add(airflow_store, 20)
    queue = airflow_store.queue("orders")
    unit = queue.units()[0]
    claim(airflow_store.database, queue, [unit], owner=Owner("somebody", "1"), lease_seconds=600)
    drain = {"queue_id": "orders", "sink_conn_id": "copies"}
    with pytest.raises(LockNotAvailable, match="somebody"):
        run_task(ExportQueueDrainOperator, **drain, if_locked="fail")
    result = run_task(ExportQueueDrainOperator, **drain, if_locked="skip")
    assert result["skipped"] == [[unit.first, unit.end]]
    with pytest.raises(LockNotAvailable, match="somebody"):
        run_task(ExportQueueDrainOperator, **drain, lock_timeout=0)


def test_a_retry_takes_over_the_leases_of_the_attempt_before(airflow_store: Any, copies: Any) -> None:
    add(airflow_store, 20)
    context = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)}
    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units(), owner=Owner(task_name(context), "dead"), lease_seconds=600)
    operator = ExportQueueDrainOperator(task_id="t", queue_id="orders", sink_conn_id="copies", if_locked="fail")
    assert operator.execute(context)["acknowledged"] == 20


def test_a_killed_drain_stops_and_what_was_acknowledged_stays_removed(airflow_store: Any, copies: Any) -> None:
    add(airflow_store, 20)
    operator = ExportQueueDrainOperator(task_id="t", queue_id="orders", sink_conn_id="copies")
    operator.on_kill()  # arrives before the first chunk is done
    with pytest.raises(AirflowTaskTerminated, match="told to stop"):
        operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)})
    left = sum(unit.entries for unit in airflow_store.backlog("orders"))
    assert left + len(copies()) == 20
    assert left > 0


class Interrupted:
    """In the place of ``check_killed``: the first chunk of the first attempt ends with an interruption."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.interrupt: Callable[[], None] | None = interrupt

    def __call__(self, *_: Any) -> None:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()


def fail() -> None:
    raise LockNotAvailable("somebody has it")


@pytest.mark.parametrize("interrupt", [fail, end_the_time_of_airflow])
def test_a_drain_that_fails_or_exceeds_airflows_time_out_is_continued_by_its_retry(
    airflow_store: Any, run_task: Any, copies: Any, monkeypatch: Any, interrupt: Callable[[], None]
) -> None:
    add(airflow_store, 20)
    monkeypatch.setattr(ExportQueueDrainOperator, "check_killed", Interrupted(interrupt))
    report = run_task(
        ExportQueueDrainOperator,
        queue_id="orders",
        sink_conn_id="copies",
        execution_timeout=timedelta(hours=1),
        retries=1,
        retry_delay=timedelta(0),
        if_locked="fail",
    )
    assert 0 < report["acknowledged"] < 20
    assert sum(one["acknowledged"] for one in airflow_store.reports()) == 20
    assert copies() == {f"customer {i}": {"total": i} for i in range(20)}
    assert airflow_store.backlog("orders") == []


@pytest.mark.parametrize("is_cleared", [False, True], ids=["retried", "cleared"])
def test_a_drain_whose_success_is_lost_delivers_what_is_pending_when_it_runs_again(
    airflow_store: Any, run_dag: Any, copies: Any, is_cleared: bool
) -> None:
    successes = iter([False])

    def lose_success(context: Any, result: Any = None) -> None:
        assert next(successes, True), "crashed after the last acknowledgement"

    with DAG("drain_without_success", schedule=None) as dag:
        ExportQueueDrainOperator(
            task_id="it",
            queue_id="orders",
            sink_conn_id="copies",
            post_execute=lose_success,
            retries=0 if is_cleared else 1,
            retry_delay=timedelta(0),
        )
    add(airflow_store, 3)
    run = run_dag(dag, **NOON)
    if is_cleared:
        assert run.state == "failed"
        add(airflow_store, 1, start=3)
        run = run_dag(dag, **NOON)
    assert run.state == "success"
    assert run.result("it")["acknowledged"] == (1 if is_cleared else 0)
    assert len(copies()) == (4 if is_cleared else 3)


def test_a_drain_that_is_cleared_after_its_success_delivers_what_is_pending_then(
    airflow_store: Any, run_dag: Any, copies: Any
) -> None:
    with DAG("drain_cleared", schedule=None) as dag:
        ExportQueueDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies")
    for count, start in ((3, 0), (2, 3), (0, 5)):
        add(airflow_store, count, start=start)
        assert run_dag(dag, **NOON).result("it")["acknowledged"] == count
    assert len(copies()) == 5


# -- bad input ---------------------------------------------------------------------------------------------------------


def refuse(run_task: Any, store: Any, error: type[Exception], match: str, **arguments: Any) -> None:
    """A drain fails with a clear error, and no entry is lost."""
    add(store, 3)
    with pytest.raises(error, match=match):
        run_task(ExportQueueDrainOperator, **{"queue_id": "orders", "sink_conn_id": "copies", **arguments})
    assert sum(unit.entries for unit in store.backlog("orders")) == 3


def test_an_unknown_queue_names_those_that_exist(airflow_store: Any, run_task: Any, copies: Any) -> None:
    refuse(run_task, airflow_store, UnknownQueue, "it has: orders", queue_id="order")


def test_ranges_that_are_not_whole_units_are_refused(airflow_store: Any, run_task: Any, copies: Any) -> None:
    refuse(run_task, airflow_store, InvalidArgument, "unit", ranges=[[0, 100]])


@pytest.mark.parametrize("ranges", ["all", [[0]], [["0", "x"]], {"a": 1}, 5])
def test_ranges_that_are_no_ranges_are_refused(airflow_store: Any, run_task: Any, copies: Any, ranges: Any) -> None:
    refuse(run_task, airflow_store, InvalidArgument, "pairs of whole numbers", ranges=ranges)


@pytest.mark.parametrize(
    ("name", "value"),
    [("if_locked", "maybe"), ("on_error", "ignore"), ("max_dead", "many"), ("max_dead", -1), ("time_limit", "0")],
)
def test_choices_that_do_not_exist_are_refused(
    airflow_store: Any, run_task: Any, copies: Any, name: str, value: Any
) -> None:
    refuse(run_task, airflow_store, ConfigurationError, name, **{name: value})


def test_an_exporter_that_cannot_be_imported_is_named(airflow_store: Any, run_task: Any, copies: Any) -> None:
    refuse(run_task, airflow_store, Exception, "no_such_module", exporter="no_such_module:export")


def test_an_unknown_sink_option_names_those_that_exist(airflow_store: Any, run_task: Any, copies: Any) -> None:
    refuse(run_task, airflow_store, SinkConfigurationError, "it takes: .*columns", sink_options={"colums": ["a"]})


def test_a_missing_sink_connection_prints_the_variable_to_set(airflow_store: Any, run_task: Any, copies: Any) -> None:
    refuse(run_task, airflow_store, MissingConnection, "AIRFLOW_CONN_NOWHERE=", sink_conn_id="nowhere")


def test_a_missing_store_connection_prints_the_variable_to_set(run_task: Any, copies: Any) -> None:
    with pytest.raises(MissingConnection, match="AIRFLOW_CONN_EXPORT_QUEUE_DEFAULT="):
        run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies")


def test_a_connection_that_is_no_sink_names_the_types_that_are(
    airflow_store: Any, run_task: Any, copies: Any, connect: Any
) -> None:
    connect("mail", conn_type="smtp", host="h")
    refuse(
        run_task, airflow_store, SinkConfigurationError, "supported are redis, sqlite, postgres", sink_conn_id="mail"
    )


def test_a_queue_that_is_bound_to_another_sink_is_refused(
    airflow_store: Any, run_task: Any, copies: Any, connect: Any, tmp_path: Path
) -> None:
    connect("others", conn_type="sqlite", host=str(tmp_path / "others.db"))
    run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies")
    refuse(run_task, airflow_store, SinkBindingError, "'copies'", sink_conn_id="others")
    assert not (tmp_path / "others.db").exists()


def upper(entry: Any) -> list[Put]:
    return [Put(entry.queue, entry.key.upper(), entry.value)]


def test_options_of_a_sink_are_those_of_the_first_drain_through_each_door(
    airflow_store: Any, run_task: Any, connect: Any, tmp_path: Path, store_path: Path
) -> None:
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    options = {"key": "number", "columns": {"total": "integer"}, "table": "totals"}
    add(airflow_store, 1)
    run_task(
        ExportQueueDrainOperator,
        queue_id="orders",
        sink_conn_id="copies",
        sink_options=json.dumps(options),
        exporter=f"{__name__}:upper",
    )
    add(airflow_store, 1, start=1)
    run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies")
    add(airflow_store, 1, start=2)
    assert "1 acknowledged" in run_cli("drain", "orders", "--sink", "copies", url=f"sqlite:///{store_path}")
    rows = (
        sqlite3.connect(tmp_path / "copies.db")
        .execute("SELECT number, total FROM totals_live ORDER BY total")
        .fetchall()
    )
    assert rows == [("CUSTOMER 0", 0), ("CUSTOMER 1", 1), ("CUSTOMER 2", 2)]
    add(airflow_store, 1, start=3)
    other = ["--sink", "copies", "--sink-option", "table=others"]
    assert "table='totals'" in run_cli("drain", "orders", *other, url=f"sqlite:///{store_path}", status=1)
    for given in ({"sink_options": {**options, "key": "id"}}, {"exporter": "builtins:print"}):
        with pytest.raises(SinkBindingError, match="key=|exporter="):
            run_task(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="copies", **given)
    assert sum(unit.entries for unit in airflow_store.backlog("orders")) == 1


def test_a_sink_that_cannot_be_reached_loses_nothing(
    airflow_store: Any, run_task: Any, copies: Any, connect: Any, monkeypatch: Any
) -> None:
    monkeypatch.setitem(DrainRequest.__init__.__kwdefaults__, "retry", Retry(attempts=2, sleep=lambda _: None))
    connect("cache", conn_type="redis", host="127.0.0.1", port=free_port(), password="kept-secret-4711")
    refuse(run_task, airflow_store, SinkUnavailable, "127.0.0.1", sink_conn_id="cache")
    assert airflow_store.queue("orders").sink is None


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("None", None),
        (" ", None),
        ([], []),
        ("[]", []),
        ([0, 101], [[0, 101]]),
        ([[0, 101], (202, 303)], [[0, 101], [202, 303]]),
        ("[[0, 101], [101, 202]]", [[0, 101], [101, 202]]),
        ([["0", "101"]], [[0, 101]]),
    ],
)
def test_ranges_are_read_as_they_arrive(given: Any, expected: Any) -> None:
    assert parse_ranges(given) == expected


def test_a_task_has_one_name_over_its_tries() -> None:
    def instance(map_index: int | None, try_number: int) -> dict[str, Any]:
        fields = {"dag_id": "d", "run_id": "r", "task_id": "g.t", "map_index": map_index, "try_number": try_number}
        return {"ti": SimpleNamespace(**fields)}

    assert task_name(instance(-1, 1)) == task_name(instance(-1, 2)) == task_name(instance(None, 1)) == "d/r/g.t"
    assert task_name(instance(3, 1)) == "d/r/g.t/3"


# -- comparing ---------------------------------------------------------------------------------------------------------


def some_orders() -> Any:
    """The first three orders, and one that nobody has added."""
    return [(f"customer {i}", {"total": i}) for i in (0, 1, 2, 7)]


def the_orders() -> Any:
    """What the queue was given."""
    return [(f"customer {i}", {"total": i}) for i in range(3)]


def test_verify_succeeds_without_differences_and_fails_at_once_with_them(
    airflow_store: Any, run_task: Any, copies: Any
) -> None:
    add(airflow_store, 3)
    compared = {"queue_id": "orders", "sink_conn_id": "copies"}
    run_task(ExportQueueDrainOperator, **compared)
    report = run_task(ExportQueueVerifyOperator, **compared, source=f"{__name__}:the_orders")
    assert (report["compared"], report["differences"], report["sink"]) == (3, 0, "copies")
    with pytest.raises(AirflowFailException) as raised:
        run_task(ExportQueueVerifyOperator, **compared, source=f"{__name__}:some_orders")
    assert "1 difference (1 missing)" in str(raised.value)
    assert "missing: orders customer 7" in str(raised.value)
    with pytest.raises(InvalidArgument, match="no_orders"):
        run_task(ExportQueueVerifyOperator, **compared, source=f"{__name__}:no_orders")


def remembered(store: Any) -> None:
    store.configure_queue("kept", buckets=4, state=True)
    with store.transaction() as tx:
        tx.queue("kept").add_many((f"customer {i}", {"total": i}) for i in range(3))


def test_verify_repairs_and_succeeds_if_nothing_differs_afterwards(
    airflow_store: Any, run_task: Any, copies: Any, tmp_path: Path
) -> None:
    remembered(airflow_store)
    compared = {"queue_id": "kept", "sink_conn_id": "copies"}
    run_task(ExportQueueDrainOperator, **compared)
    with sqlite3.connect(tmp_path / "copies.db") as connection:
        connection.execute("UPDATE kept SET document = '{}' WHERE id <> 'customer 0'")
        connection.execute("INSERT INTO kept VALUES ('other', '{}', 3, 0)")
    with pytest.raises(AirflowFailException, match="2 different"):
        run_task(ExportQueueVerifyOperator, **compared)
    with pytest.raises(AirflowFailException, match="1 extra records were not deleted"):
        run_task(ExportQueueVerifyOperator, **compared, repair=True)
    report = run_task(ExportQueueVerifyOperator, **compared, repair=True, max_deletes="{{ 1 }}")
    assert (report["differences"], report["repaired"], report["undeleted"]) == (0, 1, 0)
    with sqlite3.connect(tmp_path / "copies.db") as connection:
        rows = connection.execute("SELECT id, document FROM kept_live").fetchall()
    assert {key: json.loads(found) for key, found in rows} == {f"customer {i}": {"total": i} for i in range(3)}


def test_a_replay_adds_what_the_state_has_once_more(airflow_store: Any, run_task: Any, copies: Any) -> None:
    remembered(airflow_store)
    run_task(ExportQueueDrainOperator, queue_id="kept", sink_conn_id="copies")
    result = run_task(ExportQueueReplayOperator, queue_id="kept", keys=["customer {{ 1 }}", "customer 9"])
    assert (result["replayed"], result["absent"], result["samples"]) == (1, 1, ["customer 9"])
    assert run_task(ExportQueueReplayOperator, queue_id="kept", all_keys=True)["replayed"] == 3
    report = run_task(ExportQueueDrainOperator, queue_id="kept", sink_conn_id="copies")
    assert report["read"] == 4
    with pytest.raises(AirflowFailException, match="expected one of keys, prefix, key_range or all_keys"):
        run_task(ExportQueueReplayOperator, queue_id="kept")


def test_a_rebuild_goes_back_and_is_cancelled(airflow_store: Store, copies: Any, run_task: Any) -> None:
    airflow_store.alter_queue("orders", state=True)
    airflow_store.waive_first_load("orders/@state")
    airflow_store.subscribe("orders", "main")
    airflow_store.waive_first_load("orders/main")
    add(airflow_store, 3)
    run_task(ExportQueueDrainOperator, queue_id="orders/main", sink_conn_id="copies")
    named = {"queue_id": "orders/main", "sink_conn_id": "copies"}
    start = {
        **named,
        "step": "start",
        "pointer": "orders_now",
        "new_options": {"table": "orders-2"},
        "new_name": "next",
    }
    assert run_task(ExportQueueRebuildOperator, **start)["new"] == "orders/next"
    airflow_store.run(lambda tx: tx.queue("orders").add("customer 1", None))
    for step, phase in {"switch": "switched", "back": "following", "cancel": "cancelled"}.items():
        assert run_task(ExportQueueRebuildOperator, **named, step=step)["phase"] == phase
    with pytest.raises(InvalidArgument, match="step: expected start, switch, back, finish, cancel, found 'turn'"):
        run_task(ExportQueueRebuildOperator, **named, step="turn")
