"""Numbers and times on their way into SQL columns: as they are, or refused. Real servers."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from tests.support.sql_targets import Make, admit, execute, opened_sinks, url_of

from export_queue import Operations

NUMBERS = [
    *("12345678901234567.89", "0.30000000000000004", "1e-40", "1.5", "-0.1", "1E3", "-0", "2.50"),
    *("18446744073709551615", "18446744073709551616", "9007199254740993", "123456789012345678901234567890"),
    *("9007199254740993.00", "90071992547409930E-1", "9223372036854775807.0"),
]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


def test_a_number_arrives_as_it_is_or_is_refused(url, make):
    columns = {"n": "integer", "d": "numeric", "t": "text", "j": "json", "deep": "json"}
    sent = [(name, number) for name in columns for number in NUMBERS]
    values = [f'[{{"x\\"1": {number}}}]' if name == "deep" else number for name, number in sent]
    documents = [f'{{"{name}": {value}}}'.encode() for (name, _), value in zip(sent, values, strict=True)]
    sink = admit(make(url, columns=columns))
    ids = [f"{name} {number}".encode() for name, number in sent]
    result = sink.apply(Operations(["orders"] * len(ids), ids, documents, [5] * len(ids), range(len(ids))))
    refused = {sent[one.position]: one.reason for one in result.rejected}
    assert result.written + len(refused) == len(sent)
    chars = "char" if url.startswith("mysql") else "text"
    for id_, n, d, t, j, deep in execute(
        url, f"SELECT id, n, d, t, CAST(j AS {chars}), CAST(deep AS {chars}) FROM orders_live"
    ):
        name, number = id_.split()
        found = {"n": n, "d": d, "t": t, "j": j, "deep": deep and deep.partition(":")[2].strip(" }]")}[name]
        assert Decimal(str(found)) == Decimal(number), id_
    assert not [name for name, _ in refused if name in ("t", "j", "deep")]
    assert ("n", "1.5") in refused or url.startswith("sqlite")
    assert not {("n", "9007199254740993"), ("d", "1.5"), ("d", "-0.1"), ("n", "-0")} & refused.keys()


@pytest.mark.parametrize("kind", ["text", "numeric"])
def test_a_column_of_fewer_places_refuses_what_it_would_round(url, make, kind):
    if url.startswith("sqlite"):
        declared, fit, unfit = "numeric", [b"7.25", b'"7.25"'], [b"18446744073709551615", b'"18446744073709551615"']
    else:
        declared, fit, unfit = "numeric(9, 2)", [b"7.25", b'"7.250"', b"7"], [b"7.255", b'"7.255"', b"1e-3"]
    execute(url, f'CREATE TABLE orders ("id" text PRIMARY KEY, total {declared}, _rank bigint, _deleted boolean)')
    sink = admit(make(url, columns={"total": kind}))
    documents = [b'{"total":%b}' % value for value in fit + unfit]
    many = len(documents)
    result = sink.apply(
        Operations(["orders"] * many, [b"%d" % i for i in range(many)], documents, [5] * many, range(many))
    )
    assert (result.written, [one.position for one in result.rejected]) == (len(fit), list(range(len(fit), many)))
    assert "field 'total' is" in result.rejected[0].reason
    assert {Decimal(str(row[0])) for row in execute(url, "SELECT total FROM orders WHERE NOT _deleted")} == {
        Decimal(value.decode().strip('"')) for value in fit
    }


def test_what_is_no_number_is_refused_by_a_column_of_numbers(url, make):
    sink = admit(make(url, columns={"n": "integer", "x": "real", "d": "numeric", "b": "boolean"}))
    fit = [b'{"n":5}', b'{"n":"5"}', b'{"n":null}', b'{"x":"0.5"}', b'{"d":"7.25"}', b'{"b":true}', b'{"b":0}']
    unfit = [b'{"n":"abc"}', b'{"n":""}', b'{"n":"1_0"}', b'{"n":1.5}', b'{"n":[5]}', b'{"x":"abc"}', b'{"x":{}}']
    unfit += [b'{"d":"7,25"}', b'{"b":"perhaps"}', b'{"b":[true]}']
    documents, many = fit + unfit, len(fit + unfit)
    result = sink.apply(
        Operations(["orders"] * many, [b"%02d" % i for i in range(many)], documents, [5] * many, range(many))
    )
    assert [one.position for one in result.rejected] == list(range(len(fit), many))
    assert result.written == len(fit)
    if url.startswith("sqlite"):
        assert result.rejected[0].reason == "field 'n': expected an integer of 64 bits, found 'abc'"
        assert result.rejected[5].reason == "field 'x': expected a number, found 'abc'"
        assert result.rejected[8].reason == "field 'b': expected true or false, found 'perhaps'"
        found = execute(url, "SELECT DISTINCT typeof(n), typeof(x), typeof(d), typeof(b) FROM orders_live")
        assert not any("text" in row for row in found)


def test_an_sqlite_table_of_the_users_keeps_what_its_own_types_are_for(tmp_path, make):
    url = f"sqlite:///{tmp_path}/o.db"
    columns = '"id" text PRIMARY KEY, t text, r real, u, i integer, _rank bigint, _deleted boolean'
    execute(url, f"CREATE TABLE orders ({columns})")
    sink = admit(make(url, columns={"t": "integer", "r": "integer", "u": "integer", "i": "text"}))
    documents = [b'{"t":"abc","r":1.5,"u":"abc","i":"abc"}', b'{"r":"abc"}']
    result = sink.apply(Operations(["orders"] * 2, [b"1", b"2"], documents, [5] * 2, range(2)))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    assert execute(url, "SELECT t, r, u, i FROM orders_live") == [("abc", 1.5, "abc", "abc")]


@pytest.mark.parametrize("value", [b"20260701", b"1782864000", b"20260701.5", b"true", b"[2026]"])
def test_a_number_is_no_time(url, make, value):
    sink = admit(make(url, columns={"at": "timestamp"}))
    documents = [b'{"at":%b}' % value, b'{"at":"20260701"}']
    result = sink.apply(Operations(["orders"] * 2, [b"1", b"2"], documents, [5] * 2, range(2)))
    (rejected,) = result.rejected
    assert (rejected.position, result.written) == (0, 1)
    assert rejected.reason.startswith("field 'at': expected a time in ISO 8601, as text, found ")


def test_doubles_take_the_nearest_one_but_no_zero_for_another_number(url, make):
    sink = admit(make(url, columns={"x": "real"}))
    documents = [b'{"x":0.1}', b'{"x":12345678901234567.89}', b'{"x":1e-400}', b'{"x":0}']
    result = sink.apply(Operations(["orders"] * 4, [b"1", b"2", b"3", b"4"], documents, [5] * 4, range(4)))
    assert (result.written, [one.position for one in result.rejected]) == (3, [2])
    assert execute(url, "SELECT x FROM orders_live ORDER BY id") == [(0.1,), (12345678901234567.89,), (0,)]


def test_a_time_without_a_zone_is_one_of_utc(url, make):
    """Also where sessions have another zone, and the column none."""
    with_zone, without = {"sqlite": ("text", "text"), "postgresql": ("timestamptz", "timestamp")}.get(
        url.partition(":")[0].partition("+")[0], ("timestamp NULL", "datetime")
    )
    execute(
        url,
        f'CREATE TABLE orders ("id" text PRIMARY KEY, a {with_zone}, b {without}, _rank bigint, _deleted boolean)',
    )
    if url.startswith("postgresql"):
        execute(url, f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET TimeZone = 'Asia/Tokyo'")
    sink = admit(make(url, columns={"a": "timestamp", "b": "timestamp"}))
    documents = [
        b'{"a":"2026-11-22T10:00:00%s","b":"2026-11-22T10:00:00%s"}' % (zone, zone) for zone in (b"", b"+09:00")
    ]
    assert sink.apply(Operations(["orders"] * 2, [b"1", b"2"], documents, [5] * 2, range(2))).written == 2
    zone = {"postgresql": "SET TimeZone = 'UTC'", "mysql": "SET time_zone = '+00:00'"}.get(
        url.partition("+")[0], "SELECT 1"
    )
    found = execute(url, zone, "SELECT a, b FROM orders WHERE NOT _deleted ORDER BY id")
    assert [[str(time)[:16] for time in row] for row in found] == [["2026-11-22 10:00"] * 2, ["2026-11-22 01:00"] * 2]


def test_a_column_of_days_reads_a_number_as_its_server_does(url, make):
    """The page says so."""
    if url.startswith("sqlite"):
        pytest.skip("SQLite has no days")
    execute(url, 'CREATE TABLE orders ("id" text PRIMARY KEY, day date, _rank bigint, _deleted boolean)')
    sink = admit(make(url, columns=["day"]))
    assert sink.apply(Operations(["orders"], [b"1"], [b'{"day":20260701}'], [5], [0])).written == 1
    assert str(execute(url, "SELECT day FROM orders_live")[0][0]) == "2026-07-01"
