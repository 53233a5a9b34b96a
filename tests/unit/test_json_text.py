"""JSON is exact, or says which part of a value is refused and what to do."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export_queue.core.json_text import NotJson, json_bytes

BERLIN = ZoneInfo("Europe/Berlin")
Pair = namedtuple("Pair", "x y")


class Colour(str, Enum):  # noqa: UP042  (its str() is not its value)
    RED = "red"


class Any_(Enum):
    BYTES = b"x"
    NAN = math.nan
    PRICE = Decimal("1.10")
    HUGE = 1 << 70


@dataclass
class Line:
    price: Any
    _note: Any = "kept"


@dataclass(slots=True)
class Unset:
    there: int
    absent: int = field(init=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1.10"), "1.10"),
        (Decimal("-12345678901234567890123456789.000000000000000000001"), None),
        (Decimal("1E-400"), "1E-400"),
        (Decimal("1E+308"), "1E+308"),
        (Decimal("-0"), "-0"),
        (2**64 - 1, "18446744073709551615"),
        (2**64, "18446744073709551616"),
        ([{"a": -(10**60)}], f'[{{"a":-1{"0" * 60}}}]'),
        (10**308, f"1{'0' * 308}"),
        (datetime(2026, 7, 1, 1, 2, 3, 4, tzinfo=BERLIN), '"2026-07-01T01:02:03.000004+02:00"'),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00+00:00"'),
        (datetime(1890, 1, 1, tzinfo=BERLIN), '"1890-01-01T00:00:00+00:53:28"'),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), '"2026-01-01T00:00:00-03:30"'),
        (date(1, 2, 3), '"0001-02-03"'),
        (datetime(1, 2, 3, tzinfo=UTC), '"0001-02-03T00:00:00+00:00"'),
        (type("Day", (date,), {})(2026, 7, 1), '"2026-07-01"'),
        (type("Moment", (datetime,), {})(2026, 7, 1, tzinfo=UTC), '"2026-07-01T00:00:00+00:00"'),
        (time(1, 2, 3, tzinfo=UTC), '"01:02:03+00:00"'),
        (UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (Colour.RED, '"red"'),
        (IntEnum("Size", "S M").M, "2"),
        (Any_.PRICE, "1.10"),
        (Any_.HUGE, "1180591620717411303424"),
        ([1 << 70, IntEnum("Size", "S M").M], "[1180591620717411303424,2]"),
        (Line(1), '{"price":1,"_note":"kept"}'),
        ({"l": [Line(1 << 70, None)]}, '{"l":[{"price":1180591620717411303424,"_note":null}]}'),
        (
            {"a": (1 << 70, Decimal("1.1"), None, date(2026, 1, 1))},
            '{"a":[1180591620717411303424,1.1,null,"2026-01-01"]}',
        ),
        ({"null": None, "text": "null"}, '{"null":null,"text":"null"}'),
    ],
)
def test_a_value_is_written_exactly(value: object, expected: str | None) -> None:
    assert json_bytes(value).decode() == (str(value) if expected is None else expected)


def test_no_digit_of_a_decimal_depends_on_the_context() -> None:
    with localcontext() as context:
        context.prec = 3
        for trap in context.traps:
            context.traps[trap] = True
        assert json_bytes([Decimal("1234.56789"), Decimal("9E+307")]) == b"[1234.56789,9E+307]"


ZONE = "say which zone it is of"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"lines": [{"price": 1.5}, {"price": math.nan}]}, ("field lines[1].price is nan", "send None or text")),
        (-math.inf, ("the value is -inf", "send None")),
        ({"a": None, "b": [None, -math.inf]}, ("field b[1] is -inf", "send None")),
        ([Line(Any_.NAN)], ("field [0].price is nan", "send None")),
        ([1 << 70, math.nan], ("field [1] is nan", "send None")),
        ({"a": [Decimal("NaN")]}, ("field a[0] is NaN", "send None")),
        (Decimal("-Infinity"), ("the value is -Infinity", "send None")),
        (Decimal("sNaN"), ("the value is sNaN", "send None")),
        ([Decimal("1E+309")], ("field [0] is a number beyond 1.8E+308", "send it as text")),
        ({"a": -(10**309)}, ("field a is a number beyond 1.8E+308", "send it as text")),
        ({"at": datetime(2026, 1, 1)}, ("field at is a datetime without a zone", ZONE)),
        ([1 << 70, Line(datetime(2026, 1, 1))], ("field [1].price is a datetime without a zone", ZONE)),
        (time(1, 2), ("the value is a time without a zone", "send a datetime with a zone")),
        (time(1, 2, tzinfo=BERLIN), ("the value is a time without a zone", "send a datetime with a zone")),
        (timedelta(1), ("the value is of type datetime.timedelta", "total_seconds()")),
        ({"a": b"x"}, ("field a is of type bytes", "base64.b64encode(value).decode()")),
        ([Any_.BYTES], ("field [0] is of type bytes", "base64")),
        (bytearray(b"x"), ("the value is of type bytearray", "base64")),
        ({1}, ("the value is of type set", "sorted(value)")),
        ({"p": Pair(1, 2)}, ("field p is of type tests.unit.test_json_text.Pair", "a list or a dict")),
        ({"a": {1: 2}}, ("field a has a key of type int", "str(key)")),
        ({Colour.RED: 1}, ("the value has a key of type Colour", "str(key)")),
        ({"a": {"b": "x\ud800"}}, ("field a.b is text with a lone surrogate at position 1", "repair")),
        ({"\ud800": 1}, ("the value has a key with a lone surrogate", "repair")),
        ([Unset(1)], ("field [0] has no absent, which its class declares", "set the field")),
        (Line, ("the value is of type type", "convert it")),
        (1 + 2j, ("the value is of type complex", "convert it")),
    ],
)
def test_a_refusal_names_the_field_and_the_remedy(value: object, expected: tuple[str, str]) -> None:
    with pytest.raises(NotJson) as raised:
        json_bytes(value)
    assert str(raised.value).startswith(expected[0])
    assert expected[1] in raised.value.misfit.remedy


def test_a_value_without_an_end_is_refused_as_too_deep() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, [1 << 70, endless], Line(endless)):
        with pytest.raises(NotJson, match="nested deeper than 254 levels"):
            json_bytes(value)


class Liar:
    """Says of itself something else than what it holds."""

    def __str__(self) -> str:
        return '0,"admin":true'

    def __float__(self) -> float:
        return 9.0

    __repr__ = __str__

    def isoformat(self, *_: object) -> str:
        return "no time+00:00"

    def utcoffset(self) -> timedelta:
        return timedelta(hours=9)

    def encode(self, *_: object) -> bytes:
        raise UnicodeEncodeError("ascii", "x", 0, 1, "no")

    def is_finite(self) -> bool:
        return True

    def copy_abs(self) -> Decimal:
        return Decimal(0)

    def items(self) -> list[tuple[str, int]]:
        return [("other", 9)]

    def values(self) -> list[float]:
        return [math.nan]

    def __iter__(self) -> Any:
        return iter([math.nan])


def lying(kind: type, *content: Any, **named: Any) -> Any:
    return type(f"Lying{kind.__name__}", (Liar, kind), {})(*content, **named)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lying(Decimal, "1.50"), "1.50"),
        (lying(datetime, 2026, 7, 1, tzinfo=UTC), '"2026-07-01T00:00:00+00:00"'),
        (lying(date, 2026, 7, 1), '"2026-07-01"'),
        (lying(time, 1, 2, tzinfo=UTC), '"01:02:00+00:00"'),
        (lying(float, 1.5), "1.5"),
        (lying(int, 5), "5"),
        (lying(int, 1 << 70), "1180591620717411303424"),
        (lying(str, "x"), '"x"'),
        (lying(dict, a=None), '{"a":null}'),
        (lying(list, [None]), "[null]"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("beside", [1, 1 << 70], ids=["small", "large"])
def test_a_subclass_is_what_it_holds_not_what_it_says_of_itself(value: object, expected: str, beside: int) -> None:
    assert json_bytes({"beside": [beside, None], "v": value}).decode() == f'{{"beside":[{beside},null],"v":{expected}}}'


def test_a_subclass_cannot_hide_what_is_not_json() -> None:
    refused = {
        "is NaN": lying(Decimal, "NaN"),
        "is a number beyond": lying(Decimal, "1E+309"),
        "is a Lyingdatetime without a zone": lying(datetime, 2026, 7, 1),
        "is a Lyingtime without a zone": lying(time, 1, 2),
        "is nan": lying(float, "nan"),
        "is text with a lone surrogate": lying(str, "\ud800"),
        r"\.a is nan": lying(dict, a=math.nan),
        r"\[0\] is nan": lying(list, [math.nan]),
    }
    for expected, value in refused.items():
        with pytest.raises(NotJson, match=f"field v ?{expected}"):
            json_bytes({"v": value})


@pytest.mark.parametrize("beside", [1, 1 << 70], ids=["small", "large"])
@pytest.mark.parametrize("kind", [dict, list, str, int, float, tuple, bytes, set, Decimal, UUID])
def test_a_dataclass_that_is_another_value_too_is_refused(kind: type, beside: int) -> None:
    @dataclass(init=False)
    class Mixed(kind):  # type: ignore[misc,valid-type]
        price: int = 5

    value = Mixed("00000000-0000-0000-0000-000000000005") if kind is UUID else Mixed()
    with pytest.raises(NotJson, match=f"field v is a dataclass and of type {kind.__name__} at once"):
        json_bytes({"beside": beside, "v": value})


@pytest.mark.parametrize("beside", [1, 1 << 70], ids=["small", "large"])
def test_a_subclass_of_tuple_is_refused_beside_any_number(beside: int) -> None:
    with pytest.raises(NotJson, match=r"field \[1\] is of type .*Triple"):
        json_bytes([beside, type("Triple", (tuple,), {})((1, 2))])


def test_scalars_of_numpy_are_their_values() -> None:
    numpy = pytest.importorskip("numpy")
    value = [numpy.int8(-1), numpy.uint64(2**64 - 1), numpy.float64(1.5), numpy.float32(0.5), numpy.bool_(True)]
    assert json_bytes([*value, numpy.str_("x")]) == b'[-1,18446744073709551615,1.5,0.5,true,"x"]'
    refused = {
        "is nan": numpy.float64("nan"),
        "is inf": numpy.float32("inf"),
        "is a datetime64 without a zone": numpy.datetime64("2026-01-01T00:00"),
        "numpy.bytes_": numpy.bytes_(b"x"),
        "numpy.ndarray": numpy.arange(2),
        "numpy.longdouble": numpy.longdouble(1),
    }
    for expected, value in refused.items():
        with pytest.raises(NotJson, match=rf"field a\[0\] .*{expected}"):
            json_bytes({"a": [value]})


@pytest.mark.parametrize("unit", [None, "ns", "s", "D", "Y"])
def test_a_span_of_numpy_is_refused_whatever_its_unit(unit: str | None) -> None:
    numpy = pytest.importorskip("numpy")
    span = numpy.timedelta64(5) if unit is None else numpy.timedelta64(5, unit)
    with pytest.raises(NotJson, match=r"field a is of type numpy.timedelta64") as raised:
        json_bytes({"a": span})
    assert "value / numpy.timedelta64(1, 's')" in raised.value.misfit.remedy


def test_scalars_of_pandas_are_their_values() -> None:
    pandas = pytest.importorskip("pandas")
    moment = pandas.Timestamp("2026-07-01T01:02:03.000000004", tz="Europe/Berlin")
    written = b'["2026-07-01T01:02:03.000000004+02:00"]'
    assert json_bytes([moment]) == json_bytes([lying(pandas.Timestamp, moment)]) == written
    refused = {
        "is a Timestamp without a zone": pandas.Timestamp("2026-01-01"),
        "is NaT, which JSON has no value for": pandas.NaT,
        "is <NA>, which JSON has no value for": pandas.NA,
        "is of type .*Timedelta": pandas.Timedelta(1),
        "is of type .*Series": pandas.Series([1]),
    }
    for expected, value in refused.items():
        with pytest.raises(NotJson, match=rf"field a {expected}"):
            json_bytes({"a": value})


def test_neither_numpy_nor_pandas_is_imported() -> None:
    program = (
        "import sys; from export_queue.core.codecs import VALUES; VALUES['json'].encode([1, 1 << 70]);"
        "print({'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"


@given(st.datetimes(timezones=st.sampled_from([UTC, BERLIN, timezone(timedelta(hours=5, minutes=45))])), st.dates())
def test_times_are_written_as_python_writes_them(moment: datetime, day: date) -> None:
    assert json.loads(json_bytes([moment, day])) == [moment.isoformat(), day.isoformat()]


numbers = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=Decimal("-1E300"), max_value=Decimal("1E300")),
    st.integers(-(10**40), 10**40),
)
plain = st.one_of(st.none(), st.booleans(), st.text(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=40)
@given(st.recursive(st.one_of(numbers, plain), lambda one: st.one_of(st.lists(one), st.dictionaries(st.text(), one))))
def test_an_exact_reader_reads_what_was_written(value: Any) -> None:
    found = json.loads(json_bytes(value), parse_float=Decimal)
    assert found == _exactly(value)


def _exactly(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [_exactly(part) for part in value]
    return {key: _exactly(part) for key, part in value.items()} if isinstance(value, dict) else value
