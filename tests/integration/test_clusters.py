"""Numbers of SQL transactions hold in one life of one cluster of servers (I1, I2)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.contexts import begin, opened_by

from export_queue import OtherCluster, RegistrationLost, SnapshotTooOld, Store
from export_queue.core.store import schema
from export_queue.core.transactions import take_snapshot

locks_only = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
FAR = 1 << 40
"""Numbers of a cluster that has lived for longer."""


def move(store: Store) -> None:
    """Let the store look as if it had been restored from another cluster's dump."""
    with store.database.begin() as work:
        for table in (schema.cell, schema.conflict_key, schema.notification):
            work.connection.execute(table.update().values(xid=table.c.xid + FAR))
        work.connection.execute(schema.store.update().values(cluster="1"))
    store.database.forget_connections()


def count(tx: Any) -> int:
    n = int(tx.table("t").get("a", "n", b"0")) + 1
    tx.table("t").set("a", "n", b"%d" % n)
    return n


@locks_only
def test_a_store_from_another_cluster_is_refused_until_it_is_adopted(store: Store, store_url: str) -> None:
    assert store.run(count) == 1
    move(store)
    with Store.open(store_url) as opened, pytest.raises(OtherCluster, match="export-queue adopt"):
        _ = opened.id
    with pytest.raises(OtherCluster):  # opened before it was moved
        store.run(count)
    assert "adopted store" in run_cli("adopt", url=store_url)
    assert store.run(count) == 2
    with Store.open(store_url) as opened:
        opened.adopt()  # changes nothing
        assert opened.run(count) == 3


def test_where_a_store_is_adopted_transactions_of_its_backup_end(store: Store) -> None:
    begun = store.begin()
    with store.resume(begun) as tx:
        tx.table("t").set("a", "n", b"half")
    store.adopt()
    with pytest.raises(RegistrationLost):
        store.commit(begun)
    assert store.run(count) == 1
    store.maintain()
    assert take_snapshot(store.database).excluded == ()


@locks_only
@pytest.mark.parametrize("how", ["get", "get_many", "scan", "commit"])
def test_a_snapshot_ends_with_the_life_of_its_server(store: Store, how: str) -> None:
    """A server that has crashed may give a number again: the later commit under it would look like an old one."""
    assert store.run(count) == 1
    tx = begin(store)
    assert count(tx) == 2
    with store.database.begin() as work:  # recovery empties unlogged tables
        work.connection.execute(sa.text("truncate export_queue.xq_server_life"))
    store.database.forget_connections()
    table = tx.table("t")
    acts: dict[str, Any] = {
        "get": lambda: table.get("b", "n"),
        "get_many": lambda: table.get_many([("b", "n")]),
        "scan": lambda: list(table.scan()),
        "commit": opened_by(tx).commit,
    }
    with pytest.raises(SnapshotTooOld, match="server"):
        acts[how]()
    assert store.run(count) == 2


def test_a_crash_empties_the_table_that_tells_lives_apart(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        with store.database.read() as work:
            kind = "select relpersistence::text from pg_class where oid = 'export_queue.xq_server_life'::regclass"
            assert work.connection.execute(sa.text(kind)).scalar_one() == "u"
