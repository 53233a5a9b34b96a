"""A driver that nobody waits for, without Spark: it shows life while Spark starts, and stores why it did not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.support.waiting import wait_until

from export_queue import Owner, SinkSpec, SparkJobFailed, Store, StoreSpec
from export_queue.core.drain import DrainRequest, SubmittedDrain
from export_queue.core.locks import begin_attempt, revoke
from export_queue.core.spark import DrainArguments, drain_driver


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What the store records of drivers is tested on each kind of store elsewhere."""
    return sqlite_url


@pytest.mark.parametrize("detached", [True, False])
def test_a_detached_driver_shows_life_and_is_told_to_stop_while_spark_starts(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch, detached: bool
) -> None:
    request = DrainRequest(queue_id="q", sink_name="copies", owner=Owner("task", "1"), drain_id="d")
    begin_attempt(store.database, store.configure_queue("q"), request.owner)
    drain = SubmittedDrain.of(store.database, request, start_timeout=600)
    stops: list[str] = []

    def state() -> str:
        with store.database.read() as work:
            return drain.state(work)

    def connect(*given: Any, **options: Any) -> Any:
        if detached:
            wait_until(lambda: state() == "running", "the driver shows no life")
            revoke(store.database, "task", attempt="1")
            wait_until(lambda: bool(stops), "the driver is not stopped")
        assert detached or state() == "starting"
        raise SparkJobFailed("no executor came")

    shown = partial(drain_driver.life_shown, stop=stops.append, wait=lambda event, seconds: event.wait(0.01))
    monkeypatch.setattr(drain_driver, "life_shown", shown)
    monkeypatch.setattr(drain_driver, "connect", connect)
    arguments = DrainArguments(
        store=StoreSpec(url=store_url),
        sink=SinkSpec("sql", {"url": "sqlite:///unused.db"}, name="copies"),
        request=request,
        detached=detached,
    )
    with pytest.raises(SparkJobFailed):
        drain_driver.run(DrainArguments.from_json(arguments.to_json()))
    assert state() == "reported"
    assert store.reports(drain_id="d")[0]["problem"]["transient"]
