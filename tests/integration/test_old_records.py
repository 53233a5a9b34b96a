"""Records that clean-up deletes when they are old: reports of drains, acts on dead letters, attempts."""

from __future__ import annotations

import contextlib
from functools import partial

import sqlalchemy as sa

from export_queue import Entry, EntryRejected, MemorySink, Owner, Put, Store, drain, verify
from export_queue.core.locks import begin_attempt
from export_queue.core.maintenance import Patience
from export_queue.core.maintenance import maintain as clean_up
from export_queue.core.store import schema

maintain = partial(clean_up, patience=Patience(between_calls=0))


def test_reports_of_drains_are_kept_for_a_month_and_those_of_idle_drains_for_a_day(store: Store) -> None:
    store.configure_queue("orders", buckets=4, buckets_per_range=4)
    sink = MemorySink()
    for name in ("old", "young"):
        for kind in ("busy", "idle", "failed"):
            if kind != "idle":
                with store.transaction() as tx:
                    tx.queue("orders").add(name, kind)
            if kind == "failed":
                store.rebind("orders", "MemorySink", complete=True)
            exporter = no_exporter if kind == "failed" else None
            with contextlib.suppress(EntryRejected):
                drain(store, "orders", sink, drain_id=f"{name} {kind}", exporter=exporter, on_error="fail")
            if kind == "failed":
                store.rebind("orders", "MemorySink", complete=True)
            if kind == "failed":
                drain(store, "orders", sink, drain_id=f"{name} clean")
    kinds = ("busy", "failed", "clean")
    back_date(store, schema.drain_report, 2, schema.drain_report.c.drain_id.like("% %"))
    assert maintain(store.database).drain_reports == 2
    assert {report["drain_id"] for report in store.reports()} == {f"{n} {k}" for n in ("old", "young") for k in kinds}
    back_date(store, schema.drain_report, 29, schema.drain_report.c.drain_id.like("old %"))
    assert maintain(store.database).drain_reports == 3
    assert {report["drain_id"] for report in store.reports()} == {f"young {kind}" for kind in kinds}
    assert maintain(store.database, keep_reports=24 * 3600).drain_reports == 3


def test_comparisons_are_kept_for_a_month(store: Store) -> None:
    store.configure_queue("orders", buckets=4, buckets_per_range=4)
    sink = MemorySink()
    for n in range(3):
        store.run(lambda tx, n=n: tx.queue("orders").add(f"key {n}", n))
        drain(store, "orders", sink)
        verify(store, "orders", sink, source=lambda n=n: [(f"key {m}", m) for m in range(n + 1)])
    oldest = store.finished_comparisons("orders")[-1].report
    assert oldest.compared == 1
    table = schema.comparison
    back_date(store, table, 29, table.c.id > 0)
    back_date(store, table, 2, table.c.report.contains('"compared":1,'))
    assert maintain(store.database).comparisons == 1
    assert [one.report.compared for one in store.finished_comparisons()] == [3, 2]
    assert maintain(store.database, keep_reports=24 * 3600).comparisons == 2


def test_a_drain_reads_no_report_of_an_earlier_one(store: Store) -> None:
    store.configure_queue("orders", buckets=4, buckets_per_range=4)
    sink, seen = MemorySink(), list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        for key in ("a", None, "b"):
            if key:
                with store.transaction() as tx:
                    tx.queue("orders").add(key, 1)
            drain(store, "orders", sink)
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", note)
    about_reports = [statement for statement in seen if schema.drain_report.name in statement]
    assert [statement.split()[0] for statement in about_reports] == ["INSERT"] * 3


def no_exporter(entry: Entry) -> list[Put]:
    raise ValueError("refused")


def test_acts_on_dead_letters_are_kept_for_a_year(store: Store) -> None:
    store.configure_queue("orders", buckets=4, buckets_per_range=4)
    for who in ("anna", "ben"):
        with store.transaction() as tx:
            tx.queue("orders").add("a", 1)
        drain(store, "orders", MemorySink(), exporter=no_exporter)
        store.dead_letters.drop("orders", who=who)
    audit = schema.dead_letter_audit
    back_date(store, audit, 360, audit.c.queue == "orders")
    back_date(store, audit, 7, audit.c.who == "anna")
    assert maintain(store.database).dead_letter_acts == 1
    assert [act.who for act in store.dead_letters.audit("orders")] == ["ben"]


def test_attempts_that_never_ended_are_forgotten_after_a_month(store: Store) -> None:
    queue = store.configure_queue("orders", buckets=4, buckets_per_range=4)
    for name in ("anna", "ben"):
        begin_attempt(store.database, queue, Owner(name, "1"))
    with store.database.begin() as work:
        old = schema.attempt.update().where(schema.attempt.c.task == "anna")
        work.connection.execute(old.values(at_ms=work.now() - 31 * 24 * 3600 * 1000))
    assert maintain(store.database).attempts == 1


def back_date(store: Store, table: sa.Table, days: int, chosen: sa.ColumnElement[bool]) -> None:
    """Let rows be older, by the time that their ids carry."""
    with store.database.begin() as work:
        earlier = table.update().where(chosen).values(id=table.c.id - days * 24 * 3600 * 10**9)
        work.connection.execute(earlier)
