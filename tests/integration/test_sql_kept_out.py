"""Rows that a trigger or a rule of a table keeps out: no error says so, and no entry may be lost by that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import make_url
from tests.support.sql_targets import Make, admit, execute, opened_sinks, puts, url_of

from export_queue import ApplyResult, Claim, Operations, Retry
from export_queue.core.sinks.sql.dialects.generic import GenericDialect

INSERTS = {
    "sqlite": ("CREATE TRIGGER out_{0} BEFORE {0} ON orders WHEN {1}.id LIKE 'bad%' BEGIN SELECT RAISE(IGNORE); END",),
    "postgresql": (
        "CREATE FUNCTION out_{0}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER out_{0} BEFORE {0} ON orders FOR EACH ROW WHEN ({1}.id ~ '^bad') EXECUTE FUNCTION out_{0}()",
    ),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture(params=["own", "portable"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    def open_generic(url: str, password: Any, timeout: float) -> GenericDialect:
        found = make_url(url)
        return GenericDialect(found, password=password or found.password, timeout=timeout)

    if request.param == "own":
        yield from opened_sinks()
        return
    with mock.patch("export_queue.core.sinks.sql.sink.open_dialect", open_generic):
        yield from opened_sinks()


def keep_out(url: str, *acts: str) -> None:
    for act in acts:
        row = "OLD" if act == "DELETE" else "NEW"
        execute(url, *(one.format(act, row) for one in INSERTS[url.partition(":")[0].partition("+")[0]]))


def test_a_row_that_a_trigger_keeps_out_is_rejected_and_not_stale(url, make, monkeypatch):
    sink = admit(make(url))
    sink.apply(puts(b"bad old", b"old", seq=1))
    keep_out(url, "INSERT", "UPDATE")
    monkeypatch.setattr(sink._database, "retry", Retry(attempts=2, first_pause=0.001))
    result = sink.apply(puts(b"bad new", b"bad old", b"new", b"old", b"older", seq=5))
    assert (result.written, result.stale, [one.position for one in result.rejected]) == (3, 0, [0, 1])
    assert "trigger" in result.rejected[0].reason
    assert sink.apply(puts(b"bad old", b"new", b"old", seq=1)) == ApplyResult(0, 3)
    rows = execute(url, "SELECT id, _rank FROM orders WHERE NOT _deleted ORDER BY id")
    assert rows == [("bad old", 3), ("new", 11), ("old", 11), ("older", 11)]


@pytest.mark.parametrize(("act", "document"), [("INSERT", b"x"), ("UPDATE", b"x"), ("DELETE", None)])
def test_under_a_fence_a_row_that_is_kept_out_is_no_success(url, make, act, document):
    sink = make(url, guard="fence")
    admit(sink).create("orders")
    (claimed,) = sink.claim([Claim("u", 7)])
    if act != "INSERT":
        claimed.apply(puts(b"bad", b"good"))
    keep_out(url, act)
    batch = Operations(["orders"] * 3, [b"bad", b"good", b"none"], [document] * 3, [5] * 3, range(3))
    result = claimed.apply(batch)
    assert (result.written, [one.position for one in result.rejected]) == (2, [0])
    assert claimed.apply(batch.take([1, 2])).written == 2
