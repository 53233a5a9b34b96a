"""What becomes of values in a codec and in each sink: the tables of ``docs/values.md``, which tests compare with it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

DEAD = "dead letter"
NONE = "none"
"""Redis has no such field; SQL has NULL there."""


class Colour(Enum):
    """An enumeration."""

    RED = "red"


@dataclass
class Line:
    """A dataclass."""

    n: int
    price: Decimal


BERLIN = ZoneInfo("Europe/Berlin")


def numpy(name: str, value: object) -> Any:
    """Make a scalar of numpy, or skip the test."""
    return getattr(pytest.importorskip("numpy"), name)(value)


def timestamp(text: str, tz: str | None = None) -> Any:
    """Make a scalar of pandas, or skip the test."""
    return pytest.importorskip("pandas").Timestamp(text, tz=tz)


@dataclass(frozen=True, slots=True)
class Field:
    """A value under the codec ``json``, as a field of a document."""

    type: str
    shown: str
    """The value as Python writes it."""
    make: Callable[[], Any]
    text: str
    """The JSON that is stored, and that a record of Redis and ``_source`` in Elasticsearch hold."""
    back: str
    """What reading gives back, as Python writes it."""
    redis: str
    """The field of a hash."""
    elastic: str
    """The type under which Elasticsearch indexes the field of its own accord."""
    column: str
    """The type of the column in SQL databases; then what they hold there."""
    postgresql: str
    mariadb: str
    sqlite: str


PRICE = "1234567890.12345678901234567890"
MOMENT = datetime(2026, 7, 1, 1, 2, 3, 4, tzinfo=BERLIN)
IN_UTC = "2026-06-30 23:02:03.000004"
ISO = "2026-07-01T01:02:03.000004+02:00"
ZERO_ID = "00000000-0000-0000-0000-000000000005"

# fmt: off
FIELDS = (
    Field("text", '"é"', lambda: "é", '"é"', "'é'", "é", "text", "text", "é", "é", "é"),
    Field("int", "77", lambda: 77, "77", "77", "77", "long", "integer", "77", "77", "77"),
    Field("int beyond 2⁵³", "2**53 + 1", lambda: 2**53 + 1, "9007199254740993", "9007199254740993",
          "9007199254740993", "long", "integer", "9007199254740993", "9007199254740993", "9007199254740993"),
    Field("int beyond 64 bits", "2**64", lambda: 2**64, "18446744073709551616", "1.8446744073709552e+19",
          "18446744073709551616", DEAD, "numeric", "18446744073709551616",
          f"18446744073709551616.{'0' * 30}", DEAD),
    Field("float", "0.1", lambda: 0.1, "0.1", "0.1", "0.1", "float", "real", "0.1", "0.1", "0.1"),
    Field("bool", "True", lambda: True, "true", "True", "true", "boolean", "boolean", "true", "1", "1"),
    Field("None", "None", lambda: None, "null", "None", NONE, "not indexed", "text", NONE, NONE, NONE),
    Field("Decimal", f'Decimal("{PRICE}")', lambda: Decimal(PRICE), PRICE, "1234567890.1234567",
          PRICE, "float", "numeric", PRICE, f"{PRICE}{'0' * 10}", DEAD),
    Field("Decimal", f'Decimal("{PRICE}")', lambda: Decimal(PRICE), PRICE, "1234567890.1234567",
          PRICE, "float", "text", PRICE, PRICE, PRICE),
    Field("datetime", "a moment in Berlin", lambda: MOMENT, f'"{ISO}"', f"'{ISO}'", ISO, "date", "timestamp",
          f"{IN_UTC}+00", IN_UTC, IN_UTC),
    Field("datetime", "the same", lambda: MOMENT, f'"{ISO}"', f"'{ISO}'", ISO, "date", "text", ISO, ISO, ISO),
    Field("date", "date(2026, 7, 1)", lambda: date(2026, 7, 1), '"2026-07-01"', "'2026-07-01'", "2026-07-01", "date",
          "text", "2026-07-01", "2026-07-01", "2026-07-01"),
    Field("time", "time(1, 2, 3, tzinfo=UTC)", lambda: time(1, 2, 3, tzinfo=UTC), '"01:02:03+00:00"',
          "'01:02:03+00:00'", "01:02:03+00:00", "text", "text", "01:02:03+00:00", "01:02:03+00:00", "01:02:03+00:00"),
    Field("UUID", "UUID(int=5)", lambda: UUID(int=5), f'"{ZERO_ID}"', f"'{ZERO_ID}'", ZERO_ID, "text", "text",
          ZERO_ID, ZERO_ID, ZERO_ID),
    Field("Enum", "Colour.RED", lambda: Colour.RED, '"red"', "'red'", "red", "text", "text", "red", "red", "red"),
    Field("dataclass", 'Line(2, Decimal("9.50"))', lambda: Line(2, Decimal("9.50")), '{"n":2,"price":9.50}',
          "{'n': 2, 'price': 9.5}", '{"n":2,"price":9.50}', "object", "json", '{"n": 2, "price": 9.50}',
          '{"n":2,"price":9.50}', '{"n":2,"price":9.50}'),
    Field("list, tuple", "(1, None)", lambda: (1, None), "[1,null]", "[1, None]", "[1,null]", "long", "json",
          "[1, null]", "[1,null]", "[1,null]"),
    Field("dict", '{"a": [1.5]}', lambda: {"a": [1.5]}, '{"a":[1.5]}', "{'a': [1.5]}", '{"a":[1.5]}', "object", "json",
          '{"a": [1.5]}', '{"a":[1.5]}', '{"a":[1.5]}'),
    Field("bytes as base64", 'b64encode(b"\\xff").decode()', lambda: base64.b64encode(b"\xff").decode(), '"/w=="',
          "'/w=='", "/w==", "text", "text", "/w==", "/w==", "/w=="),
    Field("numpy integers", "int64(7)", lambda: numpy("int64", 7), "7", "7", "7", "long", "integer", "7", "7", "7"),
    Field("numpy floats", "float32(0.1)", lambda: numpy("float32", 0.1), "0.10000000149011612", "0.10000000149011612",
          "0.10000000149011612", "float", "real", "0.10000000149011612", "0.10000000149011612", "0.10000000149011612"),
    Field("numpy bool_", "bool_(False)", lambda: numpy("bool_", False), "false", "False", "false", "boolean", "boolean",
          "false", "0", "0"),
    Field("pandas Timestamp", "a moment in Berlin, with nanoseconds",
          lambda: timestamp("2026-07-01T01:02:03.000004005", "Europe/Berlin"),
          '"2026-07-01T01:02:03.000004005+02:00"', "'2026-07-01T01:02:03.000004005+02:00'",
          "2026-07-01T01:02:03.000004005+02:00", "date", "text",
          *["2026-07-01T01:02:03.000004005+02:00"] * 3),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Value:
    """A value under some codec, as the value of an entry and of a cell."""

    codec: str
    value: Any
    stored: bytes
    redis: str
    """What a string of Redis holds."""
    hash: str
    """The field ``n`` of a hash in Redis."""
    elastic: str
    sql: str
    """The column of whole documents."""


VALUES = (
    Value("bytes", b"\x00\xff", b"\x00\xff", "the bytes", DEAD, DEAD, DEAD),
    Value("bytes", b'{"n": 1}', b'{"n": 1}', '{"n": 1}', "1", '{"n": 1}', '{"n": 1}'),
    Value("str", "é", "é".encode(), "é", DEAD, DEAD, "é"),
    Value("int", 77, b"77", "77", DEAD, DEAD, "77"),
    Value("int", 2**64, b"18446744073709551616", "18446744073709551616", DEAD, DEAD, "18446744073709551616"),
    Value("json", {"n": 1}, b'{"n":1}', '{"n":1}', "1", '{"n":1}', '{"n":1}'),
    Value("json", [1.5], b"[1.5]", "[1.5]", DEAD, DEAD, "[1.5]"),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a queue, and a row of a table."""

    codec: str
    key: Any
    redis: str
    """The id of the record; the same in the other columns."""
    elastic: str
    sql: str
    row: str
    """The bytes of a table's row."""


KEYS = (
    Key("str", "é", "é", "é", "é", "c3 a9"),
    Key("int", 77, "77", "77", "77", "80 00 00 00 00 00 00 4d"),
    Key("int", -77, "-77", "-77", "-77", "7f ff ff ff ff ff ff b3"),
    Key("bytes", b"k", "k", "k", "k", "6b"),
    Key("bytes", b"\xff", "the byte", DEAD, DEAD, "ff"),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value that ``json`` refuses, as the field ``v``."""

    shown: str
    make: Callable[[], Any]
    found: str
    remedy: str


NUMBER, ZONE = "send None or text in its place", "send a datetime with a zone, or text"
WHICH = "say which zone it is of: value.replace(tzinfo=UTC), or value.astimezone() for this machine's"
BASE64 = (
    "decode it where it is text: value.decode(); else base64.b64encode(value).decode(), or the codec 'bytes' for the "
    "whole value"
)
PLAIN = "convert it to text, a number, a list or a dict"
# fmt: off
REFUSALS = (
    Refusal("nan, inf", lambda: float("nan"), "is nan, which JSON has no number for", NUMBER),
    Refusal('Decimal("NaN")', lambda: Decimal("NaN"), "is NaN, which JSON has no number for", NUMBER),
    Refusal('numpy.float64("inf")', lambda: numpy("float64", "inf"), "is inf, which JSON has no number for", NUMBER),
    Refusal("pandas.NaT, pandas.NA", lambda: timestamp("NaT"), "is NaT, which JSON has no value for",
            "send None in its place"),
    Refusal('10**309, Decimal("1E+309")', lambda: 10**309,
            "is a number beyond 1.8E+308, which readers of JSON cannot hold", "send it as text: str(…)"),
    Refusal("datetime(2026, 7, 1)", lambda: datetime(2026, 7, 1), "is a datetime without a zone", WHICH),
    Refusal('pandas.Timestamp("2026-07-01")', lambda: timestamp("2026-07-01"), "is a Timestamp without a zone", WHICH),
    Refusal("time(1, 2)", lambda: time(1, 2), "is a time without a zone", ZONE),
    Refusal('numpy.datetime64("2026-07-01")', lambda: numpy("datetime64", "2026-07-01"),
            "is a datetime64 without a zone", ZONE),
    Refusal("timedelta(1)", lambda: timedelta(1), "is of type datetime.timedelta",
            "send its seconds: value.total_seconds()"),
    Refusal('b"x"', lambda: b"x", "is of type bytes", BASE64),
    Refusal("{1, 2}", lambda: {1, 2}, "is of type set", "send a list: sorted(value)"),
    Refusal("numpy.array([1])", lambda: numpy("array", [1]), "is of type numpy.ndarray",
            "send a list: value.tolist()"),
    Refusal("{1: 2}", lambda: {1: 2}, "has a key of type int", "make its keys text: str(key)"),
    Refusal('"\\ud800"', lambda: "\ud800", "is text with a lone surrogate at position 0",
            "repair the text: text.encode('utf-8', 'replace').decode()"),
    Refusal("1j, and all else", lambda: 1j, "is of type complex", PLAIN),
)
# fmt: on


def tables() -> dict[str, str]:
    """Write the tables as Markdown, by their names on the page."""
    return {
        "fields": _table(
            "type|value|JSON|comes back as|Redis, hash|Elasticsearch, index|column|PostgreSQL|MariaDB|SQLite",
            (
                (
                    *(f.type, _code(f.shown), _code(f.text), _code(f.back), _code(f.redis), f.elastic, f.column),
                    *(_code(f.postgresql), _code(f.mariadb), _code(f.sqlite)),
                )
                for f in FIELDS
            ),
        ),
        "values": _table(
            "codec|value|Redis, string|Redis, hash: `n`|Elasticsearch|SQL, whole document",
            ((v.codec, *map(_code, (_python(v.value), v.redis, v.hash, v.elastic, v.sql))) for v in VALUES),
        ),
        "keys": _table(
            "codec|key|Redis|Elasticsearch|SQL|as a row of a table, in bytes",
            ((k.codec, *map(_code, (_python(k.key), k.redis, k.elastic, k.sql, k.row))) for k in KEYS),
        ),
        "refusals": _table(
            "value of field `v`|error: field `v` …|advice",
            ((_code(r.shown), r.found, r.remedy) for r in REFUSALS),
        ),
    }


def _python(value: object) -> str:
    written = repr(value)
    return written if '"' in written else written.replace("'", '"')


_WORDS = {DEAD, NONE, "the bytes", "the byte", "the same", "a moment in Berlin", "a moment in Berlin, with nanoseconds"}


def _code(cell: str) -> str:
    return cell if cell in _WORDS else f"`{cell}`"


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    names = head.split("|")
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *rows))
