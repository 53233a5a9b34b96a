"""A store and a sink on PostgreSQL 18, whatever version the machine has."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.support.fixtures import private_or_skip
from tests.support.postgresql_versions import VARIABLE
from tests.support.servers import PostgresServer

from export_queue import SinkSpec, Store, drain


@pytest.mark.full("it downloads and starts a server of another version")
def test_entries_reach_a_table_on_postgresql_18(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "18")
    for server in private_or_skip(PostgresServer):
        monkeypatch.setenv("PASSWORD", server.password)
        url = server.url()
        sink = SinkSpec("sql", {"url": url.replace(f":{server.password}", "")}, {"password": "env:PASSWORD"})
        with Store.open(url) as store:
            store.create()
            store.configure_queue("orders")
            with store.transaction() as tx:
                tx.queue("orders").add("anna", {"total": 3})
            assert drain(store, "orders", sink).written == 1
        with sa.create_engine(url).connect() as connection:
            assert str(connection.exec_driver_sql("show server_version").scalar()).startswith("18.")
            assert connection.exec_driver_sql("select id from orders_live").scalar() == "anna"
