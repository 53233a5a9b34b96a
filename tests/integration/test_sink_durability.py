"""What is acknowledged is on the disk: settings of servers that say otherwise are changed, refused or named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.servers import RedisServer
from tests.support.sql_targets import admit, puts

from export_queue import RedisSink, SinkConfigurationError, SqlSink
from export_queue.core.sinks.sql.dialects import mysql


def test_sqlite_syncs_the_folder_of_its_journal_too(tmp_path: Path):
    sink = admit(SqlSink(f"sqlite:///{tmp_path}/copies.db"))
    assert sink._database.ask(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar()) == 3
    sink.close()


@pytest.mark.postgres
@pytest.mark.parametrize(("found", "used"), [("off", "on"), ("local", "local")])
def test_a_commit_in_postgresql_waits_for_the_disk_where_the_database_would_not(
    postgres_url: str, found: str, used: str
):
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET synchronous_commit = {found}')
        connection.exec_driver_sql(
            'CREATE TABLE orders (id text COLLATE "C" PRIMARY KEY, document text, _rank bigint, _deleted boolean,'
            " used text DEFAULT current_setting('synchronous_commit'))"
        )
    sink = admit(SqlSink(postgres_url))
    sink.apply(puts(b"1"))
    sink.close()
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT used FROM orders WHERE id = '1'").scalar() == used
    engine.dispose()


def test_a_mariadb_that_acknowledges_before_it_writes_is_refused(mariadb_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mysql, "SERVER", "SELECT @@max_allowed_packet, 2")
    sink = SqlSink(mariadb_url)
    with pytest.raises(SinkConfigurationError, match="innodb_flush_log_at_trx_commit 1, found 2"):
        admit(sink)
    sink.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "appendonly no"),
        ({"appendonly": "yes"}, "appendfsync everysec"),
        ({"appendonly": "yes", "appendfsync": "always"}, None),
    ],
)
def test_a_redis_server_that_may_lose_what_it_acknowledged_is_named_once(caplog: Any, settings: Any, named: str | None):
    with RedisServer(settings) as server, caplog.at_level(logging.WARNING, logger="export_queue"):
        for fence in (1, 2):
            sink = RedisSink(server.host, server.port, password=server.password)
            sink.admit(queue_id="q", store_id="s", fence=fence)
            sink.close()
        found = [record.getMessage() for record in caplog.records if str(server.port) in record.getMessage()]
    assert len(found) == (named is not None)
    assert all(named in message for message in found)
