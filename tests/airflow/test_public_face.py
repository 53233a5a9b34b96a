"""The names of ``export_queue`` that need Airflow."""

from __future__ import annotations

import pytest

import export_queue
from export_queue import (
    ExportQueueNotificationTrigger,
    ExportQueueNotifier,
    ExportQueueTrigger,
    assets,
    export_transaction,
    notifications,
    queue_asset,
    transaction_group,
    triggers,
)


def test_names_that_need_airflow_lead_to_something() -> None:
    assert queue_asset is assets.queue_asset
    assert export_transaction is transaction_group.export_transaction
    assert ExportQueueNotifier is notifications.ExportQueueNotifier
    assert ExportQueueTrigger is triggers.ExportQueueTrigger
    assert ExportQueueNotificationTrigger is triggers.ExportQueueNotificationTrigger


def test_an_error_inside_of_a_module_that_needs_airflow_comes_out_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> object:
        raise ModuleNotFoundError("no module named 'orjson'", name="orjson")

    monkeypatch.delitem(vars(export_queue), "queue_asset", raising=False)
    monkeypatch.setattr(export_queue, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="orjson"):
        _ = export_queue.queue_asset
