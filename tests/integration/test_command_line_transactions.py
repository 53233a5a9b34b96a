"""``export-queue transactions``: which transactions are in progress, and ending one whose program is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.store_urls import whole_url

from export_queue import InvalidArgument, MemorySink, RegistrationLost, Store, TransactionsInProgress, drain
from export_queue.core.store.schema import entry


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    store.configure_table("t")
    store.configure_queue("airports", buckets=16, buckets_per_range=4, subscriptions=["cache"])
    return store


def url_of(store: Store) -> str:
    return whole_url(store).render_as_string(hide_password=False)


def listed(store: Store) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_cli("transactions", "list", "--json", url=url_of(store)))
    shown = run_cli("transactions", "list", url=url_of(store))
    assert all(one["transaction"] in shown for one in found)
    return found


def test_without_transactions_there_is_nothing_to_show(orders: Store) -> None:
    assert listed(orders) == []
    assert "nothing to show" in run_cli("transactions", "list", url=url_of(orders))


def test_a_long_transaction_is_listed_with_its_queues_until_it_ends(orders: Store) -> None:
    begun, limited = orders.begin(), orders.begin(queues=["airports"], timeout=60)
    first, second = listed(orders)
    assert (first["transaction"], second["transaction"]) == (str(begun["id"]), str(limited["id"]))
    assert (first["kind"], first["queues"], second["queues"]) == ("long", None, ["airports"])
    assert first["since"] <= second["since"] < second["until"] < first["until"]
    orders.abort(begun)
    orders.commit(limited)
    assert listed(orders) == []


def test_mirrors_and_first_loads_say_what_they_are(orders: Store) -> None:
    orders.subscribe("airports", "search")
    with orders.first_load("airports/search"):
        (load,) = listed(orders)
        assert (load["first_load"], load["mirrors"]) == ("airports/search", None)
        mirrored: list[dict[str, Any]] = []

        def rows() -> Any:
            mirrored.extend(listed(orders))
            yield "a", 1

        orders.mirror("orders", rows())
    (mirror,) = [one for one in mirrored if one["transaction"] != load["transaction"]]
    assert (mirror["mirrors"], mirror["first_load"], mirror["queues"]) == ("orders", None, ["orders"])


def test_a_replay_is_listed_as_what_it_is(orders: Store) -> None:
    orders.run(lambda tx: tx.queue("orders").add("a", 1))
    replayed: list[dict[str, Any]] = []

    def rows() -> Any:
        replayed.extend(listed(orders))
        yield "a", 1

    assert orders.replay("orders", keys=["a"], source=rows).replayed == 1
    (replay,) = replayed
    assert (replay["replays"], replay["mirrors"], replay["queues"]) == ("orders", None, ["orders"])


def test_an_aborted_transaction_can_no_longer_commit_and_exports_nothing(orders: Store) -> None:
    begun = orders.begin()
    with orders.resume(begun) as tx:
        tx.queue("orders").add("a", 1)
    told = run_cli("transactions", "abort", str(begun["id"]), url=url_of(orders))
    assert told == f"transaction {begun['id']} is aborted\n"
    assert listed(orders) == []
    with pytest.raises(RegistrationLost):
        orders.commit(begun)
    sink = MemorySink()
    assert drain(orders, "orders", sink, sink_name="s").read == 0
    complained = run_cli("transactions", "abort", str(begun["id"]), url=url_of(orders), status=1)
    assert f"transaction {begun['id']}: no such transaction is in progress" in complained


def test_what_a_transaction_holds_up_goes_on_after_the_abort(orders: Store) -> None:
    begun = orders.begin()
    with pytest.raises(TransactionsInProgress) as caught:
        orders.mirror("orders", [("a", 1)], settle_timeout=0.1)
    assert str(begun["id"]) in str(caught.value)
    assert "export-queue transactions list" in caught.value.hint
    orders.abort(int(begun["id"]))
    assert orders.mirror("orders", [("a", 1)]).new == 1


def test_an_aborted_transaction_leaves_no_staged_entries(orders: Store) -> None:
    begun = orders.begin()
    with orders.resume(begun) as tx:
        tx.queue("orders").add_many((f"key {n}", n) for n in range(1000))
    orders.abort(int(begun["id"]))
    orders.abort(int(begun["id"]))
    with orders.database.read() as work:
        staged = work.connection.scalar(sa.select(sa.func.count()).select_from(entry))
    assert staged == 0


def test_a_short_transaction_ends_with_its_program_only(orders: Store) -> None:
    with orders.transaction() as tx:
        number = tx.id
        (short,) = listed(orders)
        assert (short["kind"], short["transaction"], short["session"]) == ("short", str(number), None)
        with pytest.raises(InvalidArgument, match="is short, and only long ones"):
            orders.abort(number)
        tx.queue("orders").add("a", 1)
    assert orders.backlog("orders")


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_transaction_of_a_connection_names_its_server_process(orders: Store) -> None:
    engine = sa.create_engine(whole_url(orders))
    with engine.connect() as connection:
        session = connection.scalar(sa.text("select pg_backend_pid()"))
        with orders.transaction(connection=connection) as tx:
            tx.queue("orders").add("a", 1)
            tx.table("t").get("a", "column")
        found, *_ = both = listed(orders)  # one id is drawn at the first read, and one for the entries
        assert {(one["kind"], one["session"]) for one in both} == {("short", session)}
        with pytest.raises(InvalidArgument) as caught:
            orders.abort(int(found["transaction"]))
        assert f"pg_terminate_backend({session})" in caught.value.hint
        connection.commit()
    engine.dispose()
    assert listed(orders) == []


@pytest.mark.parametrize("wrong", ["0", "-1", "99999999999999999999999"])
def test_a_wrong_id_is_refused(orders: Store, wrong: str) -> None:
    complained = run_cli("transactions", "abort", "--", wrong, url=url_of(orders), status=1)
    assert wrong in complained
