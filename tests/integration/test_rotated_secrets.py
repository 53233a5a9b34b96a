"""Passwords that change while a drain runs: references are followed again at each new connection."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from tests.support.servers import PostgresServer, RedisServer

from export_queue import Entry, Put, SinkSpec, Store, StoreSpec, StoreUnavailable, drain

if TYPE_CHECKING:
    import redis


class Account:
    """A user of both servers, whose password a file holds."""

    def __init__(self, admin: psycopg.Connection[Any], cache: redis.Redis, file: Path) -> None:
        self.name = f"xq_{secrets.token_hex(8)}"
        self.file = file
        self._admin = admin
        self._cache = cache
        admin.execute(sql.SQL("create role {} superuser login").format(sql.Identifier(self.name)))
        self.rotate()

    def rotate(self, *, tells: bool = True) -> None:
        """Change the password on both servers, and end all sessions."""
        password = secrets.token_hex(8)
        role = sql.Identifier(self.name)
        self._admin.execute(sql.SQL("alter role {} password {}").format(role, sql.Literal(password)))
        self._cache.acl_setuser(
            self.name, enabled=True, reset_passwords=True, passwords=[f"+{password}"], keys=["*"], categories=["+@all"]
        )
        if tells:
            self.file.touch(mode=0o600)
            self.file.write_text(password)
        self._admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (self.name,))
        self._cache.execute_command("CLIENT", "KILL", "USER", self.name)

    def drop(self) -> None:
        self._admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (self.name,))
        self._admin.execute(sql.SQL("reassign owned by {} to current_user").format(sql.Identifier(self.name)))
        self._admin.execute(sql.SQL("drop role {}").format(sql.Identifier(self.name)))
        self._cache.execute_command("ACL", "DELUSER", self.name)


@pytest.fixture
def account(
    postgres_server: PostgresServer, postgres_url: str, redis_client: redis.Redis, tmp_path: Path
) -> Iterator[Account]:
    url = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    with closing(psycopg.connect(url, autocommit=True)) as admin:
        made = Account(admin, redis_client, tmp_path / "password")
        yield made
        made.drop()


@pytest.fixture
def store(account: Account, postgres_server: PostgresServer, postgres_url: str) -> Iterator[Store]:
    database = postgres_url.rpartition("/")[2]
    url = f"postgresql+psycopg://{account.name}@{postgres_server.host}:{postgres_server.port}/{database}"
    with Store.open(StoreSpec(url=url, secret=f"file:{account.file}")) as opened:
        opened.create()
        opened.configure_queue("orders", buckets=4, buckets_per_range=4)
        yield opened


def test_a_drain_goes_on_when_the_passwords_of_store_and_sink_change(
    store: Store, account: Account, redis_server: RedisServer
) -> None:
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"k{i}", i) for i in range(30))
    options = {"host": redis_server.host, "port": redis_server.port, "username": account.name}
    sink = SinkSpec("redis", options, {"password": f"file:{account.file}"})
    seen: list[Entry] = []

    def exporter(entry: Entry) -> list[Put]:
        seen.append(entry)
        if len(seen) == 15:
            account.rotate()
        return [Put("orders", entry.key, entry.value)]

    report = drain(store, "orders", sink, exporter=exporter, chunk_rows=10)
    assert (report.acknowledged, report.left) == (30, 0)


def test_a_password_that_the_file_does_not_tell_opens_nothing(store: Store, account: Account) -> None:
    account.rotate(tells=False)
    with pytest.raises(StoreUnavailable):
        store.queue("orders")
