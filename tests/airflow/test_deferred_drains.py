"""Drains on Spark whose task waits on the triggerer; a program in the place of spark-submit plays the driver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralTimeout, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async
from tests.support.fake_spark import DETACHED, FakeSpark, is_alive
from tests.support.triggers import Looks, Watch, pollers
from tests.support.triggers import run as run_loop
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    ConfigurationError,
    DeadLettersLeft,
    InvalidArgument,
    LeaseLost,
    MemorySink,
    Owner,
    SparkJobFailed,
    Store,
    StoreUnavailable,
    polling,
    questions,
    triggers,
)
from export_queue.core.drain import DrainRequest, SubmittedDrain, drain_as_requested
from export_queue.core.locks import begin_attempt, check_attempt, show_life
from export_queue.hooks import ExportQueueHook
from export_queue.links import SparkUiLink
from export_queue.operators import ExportQueueSparkDrainOperator, spark_drain
from export_queue.triggers import ExportQueueDriverTrigger, InvalidTriggerArgument


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """The Spark of ``spark_default``, whose driver begins, and drains once the file ``go`` exists."""
    fake = FakeSpark(tmp_path / "fake-spark", DETACHED, "wait")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    connect("spark_default", conn_type="spark", host="local[2]")
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    yield fake
    for call in fake.calls():
        with contextlib.suppress(ProcessLookupError):
            os.kill(call["pid"], 9)


def add(store: Any, *customers: str) -> None:
    with store.transaction() as tx:
        for customer in customers:
            tx.queue("orders").add(customer, {})


def waiting(store: Any) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def operator(**arguments: Any) -> ExportQueueSparkDrainOperator:
    wanted = {"task_id": "it", "queue_id": "orders", "sink_conn_id": "copies", "deferrable": True}
    return ExportQueueSparkDrainOperator(**{**wanted, **arguments})


def context() -> Any:
    return {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)}


def deferred(**arguments: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator(**arguments).execute(context())
    return caught.value


def resume(deferral: TaskDeferred, state: str) -> Any:
    event = {**deferral.trigger.serialize()[1], "state": state}
    return operator().resume_execution(str(deferral.method_name), {"event": event}, context())


def stored(deferral: TaskDeferred, **changed: Any) -> ExportQueueDriverTrigger:
    """The trigger of a task as a triggerer gets it."""
    path, arguments = deferral.trigger.serialize()
    assert path == "export_queue.triggers.ExportQueueDriverTrigger"
    return ExportQueueDriverTrigger(**{**json.loads(json.dumps(arguments)), "poll_interval": 0.02, **changed})


def drain_of(deferral: TaskDeferred) -> SubmittedDrain:
    return SubmittedDrain.from_dict(deferral.trigger.serialize()[1]["drain"])


@pytest.fixture
def begins(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], TaskDeferred]:
    """Add an entry, and defer a task whose driver has begun, without a process."""

    def defer(store: Any) -> TaskDeferred:
        spark.mode("accepted")
        add(store, "anna")
        with monkeypatch.context() as patch:
            patch.setattr(SubmittedDrain, "state", lambda drain, work: "running")
            return deferred()

    return defer


def is_revoked(store: Any, drain: SubmittedDrain) -> bool:
    try:
        check_attempt(store.database, Owner(drain.task, drain.attempt))
    except LeaseLost:
        return True
    return False


# -- the task ----------------------------------------------------------------------------------------------------------


def test_a_deferred_task_resumes_with_the_report_of_a_driver_that_outlived_it(
    airflow_store: Any, spark: FakeSpark, looks: Looks, capfd: pytest.CaptureFixture[str]
) -> None:
    add(airflow_store, "anna", "ben")
    deferral = deferred(execution_timeout=timedelta(hours=1))
    assert deferral.timeout == timedelta(hours=1)
    (call,) = spark.calls()
    assert call["session"] == call["pid"], "a signal to the group of the task does not reach it"
    (output,) = Path(os.environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"], "export_queue_drivers").iterdir()
    assert output.stat().st_mode & 0o77 == 0

    async def watch() -> dict[str, Any]:
        watched = Watch(stored(deferral, spark_ui="http://manager:8088/"))
        await looks.another(2)
        assert watched.events == [], "the driver has not ended"
        assert waiting(airflow_store) == 2
        (spark.folder / "go").touch()
        while not watched.events:
            await asyncio.sleep(0.01)
        return watched.events[0]

    event = asyncio.run(asyncio.wait_for(watch(), 60))
    assert (event["state"], event["spark_ui"]) == ("reported", "http://manager:8088/")
    capfd.readouterr()
    report = operator().execute_complete(context(), event)
    log = capfd.readouterr().out
    assert (report["acknowledged"], report["drain_id"]) == (2, drain_of(deferral).drain_id)
    assert json.loads(json.dumps(report)) == report
    assert "the driver says hello" in log
    assert re.search("orders.*2 read = 2 acknowledged", log)
    assert not output.exists()
    assert len(spark.calls()) == 1


def test_a_task_that_resumes_in_an_outage_of_the_store_waits_for_the_report(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A retry would find nothing left, and report that it delivered nothing."""
    add(airflow_store, "anna")
    end(airflow_store, drain)
    event = {"state": "reported", "drain": asdict(drain), "output": None}
    outages, reports = [StoreUnavailable("the store is away")] * 3, Store.reports
    pauses: list[float] = []

    def read(store: Store, **selection: Any) -> Any:
        if outages:
            raise outages.pop()
        return reports(store, **selection)

    monkeypatch.setattr(Store, "reports", read)
    monkeypatch.setattr(spark_drain, "_OUTAGE", replace(spark_drain._OUTAGE, sleep=pauses.append))
    report = operator().execute_complete(context(), event)
    assert report["acknowledged"] == 1
    assert len(pauses) == 3
    assert "once the store answers" in capfd.readouterr().out


def test_airflow_stores_the_deferral_and_resumes_the_task(
    airflow_store: Any, spark: FakeSpark, run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ExportQueueDriverTrigger.__init__.__kwdefaults__, "poll_interval", 0.02)
    answer = polling.Poller._answer

    def look(poller: polling.Poller, questions: Any) -> Any:
        (spark.folder / "go").touch()
        return answer(poller, questions)

    monkeypatch.setattr(polling.Poller, "_answer", look)
    add(airflow_store, "anna")
    with DAG("deferred_drain", schedule=None) as dag:
        operator()
    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert run.result("it")["acknowledged"] == 1


def test_nothing_is_deferred_where_nothing_is_pending_or_the_drain_has_ended_already(
    airflow_store: Any, spark: FakeSpark
) -> None:
    assert operator().execute(context())["read"] == 0
    assert spark.calls() == []
    spark.mode("drain")
    add(airflow_store, "anna")
    assert operator().execute(context())["acknowledged"] == 1


def test_a_submission_that_fails_says_so_before_the_task_is_deferred(
    airflow_store: Any, spark: FakeSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    spark.mode("broken")
    add(airflow_store, "anna")
    with pytest.raises(SparkJobFailed, match="ended with status 3 before") as caught:
        operator().execute(context())
    assert not isinstance(caught.value, AirflowFailException)
    assert "the cluster is on fire" in capfd.readouterr().out


def test_a_driver_that_does_not_begin_in_time_is_stopped(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(airflow_store, "anna")
    monkeypatch.setattr(SubmittedDrain, "state", lambda drain, work: "silent")
    task = operator()
    with pytest.raises(SparkJobFailed, match="has not begun within 600 seconds"):
        task.execute(context())
    assert task._detached is not None
    task._detached.wait(30)


@pytest.mark.parametrize("state", ["running", "reported"])
def test_an_outage_of_the_store_while_the_driver_begins_does_not_stop_it(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    real, outages = SubmittedDrain.state, 3

    def look(drain: SubmittedDrain, work: Any) -> Any:
        nonlocal outages
        found = real(drain, work)
        if found == state and (outages := outages - 1) >= 0:
            raise StoreUnavailable("gone")
        return found

    monkeypatch.setattr(SubmittedDrain, "state", look)
    spark.mode("wait" if state == "running" else "drain")
    add(airflow_store, "anna")
    if state == "reported":
        assert operator().execute(context())["acknowledged"] == 1
    else:
        deferred()
        assert is_alive(spark.calls()[0]["pid"])


def test_a_store_that_does_not_answer_in_time_ends_the_submission(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(drain: SubmittedDrain, work: Any) -> Any:
        raise StoreUnavailable("gone")

    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr(spark_drain, "monotonic", lambda: next(times))
    monkeypatch.setattr(SubmittedDrain, "state", look)
    add(airflow_store, "anna")
    task = operator()
    with pytest.raises(StoreUnavailable):
        task.execute(context())
    assert task._detached is not None
    task._detached.wait(30)


def test_a_task_that_is_killed_before_it_defers_ends_its_driver(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(airflow_store, "anna")
    task = operator()
    monkeypatch.setattr(spark_drain, "sleep", lambda seconds: task.on_kill())
    monkeypatch.setattr(SubmittedDrain, "state", lambda drain, work: "starting")
    with pytest.raises(BaseException, match="was told to stop"):
        task.execute(context())
    assert task._detached is not None
    task._detached.wait(30)


def test_a_silent_driver_fails_the_task_for_a_retry_and_is_stopped_if_it_lives(
    airflow_store: Any, begins: Callable[[Any], TaskDeferred]
) -> None:
    deferral = begins(airflow_store)
    with pytest.raises(SparkJobFailed, match="shows no life and has stored no report") as caught:
        resume(deferral, "silent")
    assert not isinstance(caught.value, AirflowFailException)
    assert is_revoked(airflow_store, drain_of(deferral))


def test_a_report_that_comes_with_the_last_poll_counts(
    airflow_store: Any, begins: Callable[[Any], TaskDeferred]
) -> None:
    deferral = begins(airflow_store)
    end(airflow_store, drain_of(deferral))
    assert resume(deferral, "silent")["acknowledged"] == 1


def test_a_retry_next_to_a_running_driver_ends_it_and_delivers_everything_once(
    airflow_store: Any, spark: FakeSpark
) -> None:
    add(airflow_store, "anna", "ben")
    deferred()
    second = deferred()
    first_call, second_call = spark.calls()
    wait_until(lambda: not is_alive(first_call["pid"]), "the older driver continues")
    assert is_alive(second_call["pid"])
    (spark.folder / "go").touch()
    wait_until(lambda: bool(airflow_store.reports(drain_id=drain_of(second).drain_id)), "no report")
    assert resume(second, "reported")["acknowledged"] == 2
    assert len(airflow_store.reports()) == 1


def test_a_retry_after_a_report_that_no_attempt_has_read_delivers_only_what_is_left(
    airflow_store: Any, spark: FakeSpark
) -> None:
    """Airflow fails a task that resumes too early in its scheduler, where no code of the operator runs."""
    add(airflow_store, "anna", "ben")
    first = drain_of(deferred())
    (spark.folder / "go").touch()
    wait_until(lambda: bool(airflow_store.reports(drain_id=first.drain_id)), "no report")
    assert operator().execute(context())["read"] == 0
    assert len(spark.calls()) == 1, "a retry that finds nothing submits nothing"

    spark.mode("drain")
    add(airflow_store, "carla")
    assert operator().execute(context())["acknowledged"] == 1
    assert sum(report["acknowledged"] for report in airflow_store.reports()) == 3
    assert waiting(airflow_store) == 0


@pytest.mark.parametrize(
    ("report", "error", "is_terminal"),
    [("dead letters", DeadLettersLeft, True), ("lost lease", LeaseLost, False), ("interrupted", Exception, False)],
)
def test_what_a_report_says_ends_the_task_as_without_a_deferral(
    airflow_store: Any, spark: FakeSpark, report: str, error: type[Exception], is_terminal: bool
) -> None:
    def refuse(entry: Any) -> Any:
        if report == "interrupted":
            raise KeyboardInterrupt
        raise LeaseLost("gone") if report == "lost lease" else ValueError("no")

    add(airflow_store, "anna")
    request = DrainRequest(
        queue_id="orders", sink_name="copies", owner=Owner("d/r/it", "1"), drain_id="d", exporter=refuse
    )
    with contextlib.suppress(LeaseLost, KeyboardInterrupt):
        drain_as_requested(airflow_store, MemorySink(), request)
    drain = SubmittedDrain(task="d/r/it", attempt="1", drain_id="d", since_ms=0, start_timeout=1)
    event = {"state": "reported", "drain": asdict(drain), "output": {"host": "elsewhere", "path": "/x"}}
    with pytest.raises(error) as caught:
        operator().execute_complete(context(), event)
    assert isinstance(caught.value, AirflowFailException) is is_terminal


def test_a_deferral_that_takes_too_long_stops_the_driver(
    airflow_store: Any, begins: Callable[[Any], TaskDeferred]
) -> None:
    deferral = begins(airflow_store)
    with pytest.raises(TaskDeferralTimeout):
        operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context())
    assert is_revoked(airflow_store, drain_of(deferral))


# -- where the driver runs ---------------------------------------------------------------------------------------------


def test_a_client_driver_in_a_pod_that_ends_with_the_deferral_is_refused(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    add(airflow_store, "anna")
    with pytest.raises(ConfigurationError, match="pod of this task") as caught:
        operator().execute(context())
    assert isinstance(caught.value, AirflowFailException)
    assert spark.calls() == []


@pytest.mark.parametrize(
    "argument", ["durable", "post_submit_commands", "track_driver_via_k8s_api", "yarn_track_via_rm_api"]
)
def test_what_needs_a_task_that_waits_for_spark_submit_is_refused(argument: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{argument}: a deferred drain"):
        operator(**{argument: ["true"] if argument == "post_submit_commands" else True})
    operator(**{argument: None if argument == "post_submit_commands" else False})


def test_a_task_that_continues_knows_the_address_of_sparks_ui(begins: Any, airflow_store: Any) -> None:
    deferral = begins(airflow_store)
    end(airflow_store, drain_of(deferral))
    event = {**deferral.trigger.serialize()[1], "state": "reported", "spark_ui": "http://manager:8088/"}
    task = operator()
    task.execute_complete(context(), event)
    assert SparkUiLink().get_link(task, ti_key=None) == "http://manager:8088/"


def test_in_cluster_mode_the_task_defers_once_the_cluster_has_accepted_the_job(
    airflow_store: Any,
    spark: FakeSpark,
    connect: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    monkeypatch.setattr("export_queue.core.spark.refuse_remote_sqlite", lambda *given: None)
    connect("spark_default", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    spark.mode("accepted")
    add(airflow_store, "anna")
    deferral = deferred()
    assert "the driver says hello" in capfd.readouterr().out
    (call,) = spark.calls()
    assert "spark.yarn.submit.waitAppCompletion=false" in call["arguments"]
    assert deferral.trigger.serialize()[1]["output"] is None
    assert stored(deferral).spark_ui == "http://manager:8088/proxy/application_1/"
    end(airflow_store, drain_of(deferral))
    assert resume(deferral, "reported")["acknowledged"] == 1
    add(airflow_store, "ben")
    spark.mode("broken")
    with pytest.raises(SparkJobFailed, match="status 3"):
        operator().execute(context())


# -- the trigger -------------------------------------------------------------------------------------------------------


@pytest.fixture
def drain(airflow_store: Any) -> SubmittedDrain:
    return begun(airflow_store, "d/r/it")


def begun(store: Any, task: str) -> SubmittedDrain:
    request = DrainRequest(queue_id="orders", sink_name="memory", owner=Owner(task, "1"), drain_id=f"{task}#1")
    begin_attempt(store.database, store.queue("orders"), request.owner)
    return SubmittedDrain.of(store.database, request, start_timeout=600)


def trigger(drain: SubmittedDrain, **arguments: Any) -> ExportQueueDriverTrigger:
    return ExportQueueDriverTrigger(**{"drain": asdict(drain), "poll_interval": 0.02, **arguments})


def end(store: Any, drain: SubmittedDrain) -> None:
    owner = Owner(drain.task, drain.attempt).submitted()
    request = DrainRequest(queue_id="orders", sink_name="copies", owner=owner, drain_id=drain.drain_id)
    drain_as_requested(store, MemorySink(name=store.id), request)


def test_a_trigger_is_stored_as_ids_and_numbers(drain: SubmittedDrain) -> None:
    made = trigger(drain, export_queue_conn_id="other")
    _, arguments = made.serialize()
    assert ExportQueueDriverTrigger(**json.loads(json.dumps(arguments))).serialize() == made.serialize()
    assert set(arguments) == {"drain", "output", "spark_ui", "poll_interval", "export_queue_conn_id"}
    assert set(arguments["drain"]) == {"task", "attempt", "drain_id", "since_ms", "start_timeout"}


@pytest.mark.parametrize(
    "arguments", [{"drain": {}}, {"drain": None}, {"poll_interval": 0}, {"export_queue_conn_id": 5}, {"spark_ui": 5}]
)
def test_a_bad_argument_is_an_error_that_the_triggerer_outlives(arguments: Any) -> None:
    fields = {"task": "t", "attempt": "1", "drain_id": "d", "since_ms": 1, "start_timeout": 1}
    with pytest.raises(InvalidTriggerArgument):
        ExportQueueDriverTrigger(**{"drain": fields, **arguments})


def test_a_driver_is_announced_as_silent_if_it_was_for_two_of_its_signs_without_a_break(
    drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows life again at 21 s: after an outage of the store, or after the store's clock was set forward."""
    states = [(0, "starting"), (2, "silent"), (7, "silent"), (12, "silent"), (21, "running")]
    left = iter([*states, (22, "silent"), (32, "silent"), (41, "silent"), (42, "silent"), (50, "reported")])
    now = 0

    async def look(*given: Any) -> questions.DriverSeen:
        nonlocal now
        now, state = next(left)
        return questions.DriverSeen(state)

    monkeypatch.setattr("export_queue.triggers.time", SimpleNamespace(monotonic=lambda: now))

    monkeypatch.setattr(polling.Poller, "look", look)

    async def watch() -> None:
        events = [event.payload["state"] async for event in trigger(drain, poll_interval=5).run()]
        assert events == ["silent"], "after its event it ends: Airflow would take a later end for the act of a person"
        assert list(left) == [(50, "reported")]
        assert pollers() == []

    run_loop(watch())


def announced_at(drain: SubmittedDrain, looks: Iterator[tuple[float, str, int | None]]) -> tuple[float, str] | None:
    """Let a trigger see times of polls, states and signs; return when it announced which state, None if it did not."""
    now = 0.0

    async def look(*given: Any) -> questions.DriverSeen:
        nonlocal now
        now, state, sign = next(looks, (now, "reported", None))
        return questions.DriverSeen(state, sign)  # type: ignore[arg-type]

    async def watch() -> str:
        (state,) = [event.payload["state"] async for event in trigger(drain, poll_interval=5).run()]
        return str(state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export_queue.triggers.time", SimpleNamespace(monotonic=lambda: now))
        patch.setattr(polling.Poller, "look", look)
        state = asyncio.run(watch())
    return None if state == "reported" else (now, state)


def test_a_clock_of_the_store_that_is_set_back_does_not_delay_the_notice_of_a_dead_driver(
    drain: SubmittedDrain,
) -> None:
    polls = range(5, 1000, 5)
    begun, ended = drain.since_ms + 1, 100
    signs = ((at, "running", begun + min(at, ended) // 10) for at in polls)  # it dies at 100 s
    assert announced_at(drain, signs) == (ended + 80, "silent")
    alive = ((at, "running", begun + at // 10) for at in polls)
    assert announced_at(drain, alive) is None
    late = ((at, "starting", drain.since_ms) for at in polls)
    assert announced_at(drain, late) == (5 + drain.start_timeout + 20, "silent")


def test_an_outage_of_the_store_is_no_silence_of_its_drivers(drain: SubmittedDrain) -> None:
    begun = drain.since_ms + 1
    polls = [(5, "running", begun), (10, "silent", begun), (500, "silent", begun), (900, "silent", begun)]
    assert announced_at(drain, iter([*polls[:3], (505, "running", begun + 1), (510, "running", begun + 2)])) is None
    assert announced_at(drain, iter(polls)) == (900, "silent"), "two long steps count twice their interval each"


def test_a_driver_that_does_not_begin_is_stopped_although_the_stores_clock_is_set_back(
    airflow_store: Any, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(airflow_store, "anna")
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr(spark_drain, "monotonic", lambda: next(times))
    monkeypatch.setattr(SubmittedDrain, "state", lambda drain, work: "starting")
    with pytest.raises(SparkJobFailed, match="has not begun within 600 seconds"):
        operator().execute(context())


def test_a_hundred_deferred_drains_share_one_thread_and_one_connection(airflow_store: Any, looks: Looks) -> None:
    drains = [begun(airflow_store, f"d/r/it/{i}") for i in range(100)]
    for one in drains:
        show_life(airflow_store.database, Owner(one.task, one.attempt).submitted())

    async def watch() -> None:
        before = threading.active_count()
        watched = [Watch(trigger(one)) for one in drains]
        await looks.another(3)
        (poller,) = pollers()
        assert poller.users == 100
        assert threading.active_count() <= before + 1
        assert poller._store is not None
        assert poller._store.database.engine.pool.checkedout() <= 1  # type: ignore[attr-defined]
        assert not any(one.events for one in watched)
        end(airflow_store, drains[7])
        while not watched[7].events:
            await asyncio.sleep(0.01)
        assert sum(len(one.events) for one in watched) == 1
        for one in watched:
            await one.stop()

    run_loop(watch())


def test_the_end_of_a_triggerer_stops_no_driver_and_its_successor_finds_the_report(
    airflow_store: Any, drain: SubmittedDrain, looks: Looks
) -> None:
    async def watch() -> None:
        first = Watch(trigger(drain))
        await looks.another()
        await first.stop()
        await first._trigger.cleanup()
        assert not is_revoked(airflow_store, drain)
        end(airflow_store, drain)
        second = Watch(trigger(drain))
        while not second.events:
            await asyncio.sleep(0.01)
        assert [event["state"] for event in second.events] == ["reported"]

    run_loop(watch())


def test_a_deferred_drain_does_not_resume_before_the_scheduler_knows_that_it_is_deferred(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(airflow_store, drain)
    made = trigger(drain)
    made.task_instance = SimpleNamespace(task_id="it")  # type: ignore[assignment]
    monkeypatch.setattr(triggers, "RESUME_SECONDS", 0.3)

    async def events() -> list[float]:
        begun = time.monotonic()
        return [time.monotonic() - begun async for _ in made.run()]

    (waited,) = asyncio.run(asyncio.wait_for(events(), 60))
    assert waited >= 0.3


def test_a_person_who_ends_a_deferred_task_ends_its_driver(airflow_store: Any, drain: SubmittedDrain) -> None:
    asyncio.run(trigger(drain).on_kill())
    assert is_revoked(airflow_store, drain)


@pytest.mark.parametrize(
    ("state", "is_ended"),
    [("failed", True), ("success", True), (None, True), ("queued", True), ("deferred", False), (OSError("no"), False)],
)
def test_a_task_that_another_triggerer_took_over_is_not_taken_for_one_that_a_person_ended(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch, state: Any, is_ended: bool
) -> None:
    """Airflow 3.3 calls on_kill in both cases, and in a thread of its own the API can be asked."""

    def states(dag_id: str, run_ids: list[str], task_ids: list[str], map_index: int | None) -> dict[str, Any]:
        assert (dag_id, run_ids, task_ids, map_index) == ("d", ["r"], ["it"], 3)
        if isinstance(state, Exception):
            raise state
        return {"r": {"it_3": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    monkeypatch.setattr(triggers, "_ASKS", replace(triggers._ASKS, seconds=0))
    made = trigger(drain)
    made.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=3)  # type: ignore[assignment]
    asyncio.run(made.on_kill())
    assert is_revoked(airflow_store, drain) is is_ended


def test_airflow_is_asked_again_for_the_state_of_a_task_that_ends(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = ["failed", OSError("no"), OSError("no")]

    def state(task_instance: Any) -> str:
        if isinstance(answer := answers.pop(), Exception):
            raise answer
        return str(answer)

    pauses: list[float] = []
    monkeypatch.setattr(triggers, "recorded_state", state)
    monkeypatch.setattr(triggers, "_ASKS", replace(triggers._ASKS, sleep=pauses.append))
    made = trigger(drain)
    made.task_instance = SimpleNamespace(task_id="it")  # type: ignore[assignment]
    asyncio.run(made.on_kill())
    assert is_revoked(airflow_store, drain)
    assert (answers, len(pauses)) == ([], 2)


def test_a_person_who_ends_a_deferred_task_ends_its_driver_however_slow_airflow_answers(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow cancels a trigger every second until it has ended, and so its on_kill, too."""
    asked, answer = threading.Event(), threading.Event()

    def state(task_instance: Any) -> str:
        asked.set()
        assert answer.wait(PATIENCE)
        return "failed"

    monkeypatch.setattr(triggers, "recorded_state", state)
    made = trigger(drain)
    made.task_instance = SimpleNamespace(task_id="it")  # type: ignore[assignment]

    async def kill() -> None:
        killing = asyncio.create_task(made.on_kill())
        await asyncio.to_thread(asked.wait, PATIENCE)
        killing.cancel("the same act, once more")
        with pytest.raises(asyncio.CancelledError):
            await killing
        answer.set()
        await asyncio.to_thread(wait_until, lambda: is_revoked(airflow_store, drain), "the driver continues")

    asyncio.run(kill())


def test_a_driver_is_ended_once_the_store_answers_again(
    airflow_store: Any, drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = [StoreUnavailable("the store is away")] * 3
    real = triggers.open_store

    def opened(described: Any) -> Any:
        if outages:
            raise outages.pop()
        return real(described)

    monkeypatch.setattr(triggers, "open_store", opened)
    asyncio.run(trigger(drain).on_kill())
    assert is_revoked(airflow_store, drain)
    assert outages == []


def test_a_person_is_known_to_have_acted_while_the_connection_is_being_read(
    drain: SubmittedDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow tells by the text of the cancellation, which is lost where a secrets backend is asked in a thread."""
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go.wait(PATIENCE)

    async def described(hook: Any) -> Any:
        await sync_to_async(slow)()

    monkeypatch.setattr(ExportQueueHook, "adescribe", described)

    async def act() -> None:
        running = asyncio.create_task(anext(trigger(drain).run()))
        await asyncio.to_thread(begun.wait, PATIENCE)
        running.cancel("a person")
        with pytest.raises(asyncio.CancelledError) as caught:
            await running
        assert caught.value.args == ("a person",)
        go.set()

    asyncio.run(act())


def test_airflow_has_what_the_deferral_relies_on() -> None:
    from airflow.jobs import triggerer_job_runner
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR
    from airflow.triggers.base import BaseTrigger

    assert TRIGGER_FAIL_REPR == "__fail__"
    assert callable(BaseTrigger.on_kill)
    assert triggerer_job_runner._USER_ACTION_CANCEL_MSG
    assert callable(SparkSubmitHook._build_spark_submit_command)
