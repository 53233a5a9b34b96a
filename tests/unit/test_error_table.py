"""Errors of clients are judged by a table."""

from __future__ import annotations

import psycopg
import pytest
import redis
import sqlalchemy as sa

from export_queue import ErrorRow, ErrorTable, Fate, SinkRefused, SinkUnavailable
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.sql.dialects import Poison, TryAgain
from export_queue.core.sinks.sql.dialects.postgresql import PostgresDialect

TABLE = ErrorTable(
    "Some",
    [
        ErrorRow("4*", Fate.LATER, "wait"),
        ErrorRow("40*", Fate.REJECTED, "bad"),
        ErrorRow("40P01", Fate.AGAIN, "deadlock"),
        ErrorRow("*", Fate.REFUSED, "ask somebody"),
    ],
)


@pytest.mark.parametrize(
    ("code", "row"), [("40P01", "40P01"), ("40P02", "40*"), ("40", "40*"), ("41", "4*"), ("5", "*"), ("", "*")]
)
def test_a_code_has_its_own_row_or_that_with_the_longest_beginning(code, row):
    assert TABLE.find(code).code == row


def test_transient_and_terminal_follow_from_the_table():
    assert isinstance(TABLE.find("41").error("m"), SinkUnavailable)
    assert TABLE.find("41").error("m").transient
    refused = TABLE.find("nobody").error("m")
    assert isinstance(refused, SinkRefused)
    assert (refused.transient, refused.hint) == (False, "ask somebody")


def test_the_table_reads_well():
    assert TABLE.markdown().splitlines()[2:] == [
        "| `4*` | `SinkUnavailable` | wait |",
        "| `40*` | a rejection | bad |",
        "| `40P01` | repeated at once | deadlock |",
        "| any other | `SinkRefused` | ask somebody |",
    ]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (redis.exceptions.OutOfMemoryError("command not allowed"), SinkUnavailable, "OOM"),
        (redis.ResponseError("MISCONF cannot save"), SinkUnavailable, "MISCONF"),
        (redis.ResponseError("NOREPLICAS not enough"), SinkUnavailable, "NOREPLICAS"),
        (redis.BusyLoadingError("loading"), SinkUnavailable, "LOADING"),
        (redis.AuthenticationError("invalid password"), SinkRefused, "AUTH"),
        (redis.exceptions.MovedError("12 host:1"), SinkUnavailable, "MOVED"),
        (redis.TimeoutError("Timeout reading"), SinkUnavailable, "does not answer"),
        (ConnectionResetError("reset"), SinkUnavailable, "does not answer"),
        (redis.ResponseError("ERR wrong number of arguments"), SinkRefused, "refuses: ERR wrong"),
    ],
)
def test_errors_of_redis(error, kind, words):
    found = explain(error, "cache:6379")
    assert type(found) is kind
    assert words in found.message
    assert found.hint


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", TryAgain),
        ("40P01", TryAgain),
        ("40003", SinkUnavailable),
        ("22P02", Poison),
        ("23505", Poison),
        ("54000", Poison),
        ("57014", SinkUnavailable),
        ("53100", SinkUnavailable),
        ("25006", SinkUnavailable),
        ("42P01", SinkRefused),
        ("42501", SinkRefused),
    ],
)
def test_errors_of_postgresql(code, kind):
    error = psycopg.errors.lookup(code)("no")
    assert type(postgresql().explain(error)) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("gone"), SinkUnavailable),
        (psycopg.InterfaceError("closed"), SinkUnavailable),
        (psycopg.DataError("NUL"), Poison),
        (psycopg.ProgrammingError("no"), SinkRefused),
    ],
)
def test_errors_of_postgresqls_driver_without_a_code(error, kind):
    assert type(postgresql().explain(error)) is kind


def postgresql() -> PostgresDialect:
    return PostgresDialect(sa.make_url("postgresql+psycopg://user@host/database"), password=None, timeout=1)
