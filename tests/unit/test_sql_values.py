"""Numbers and times on their way into SQL columns: the pure part."""

from __future__ import annotations

from decimal import Decimal

import pytest

from export_queue.core.sinks.sql.tables import Column, Unfit
from export_queue.core.sinks.sql.values import as_literal, as_native, as_python, as_text, check_doubles

PAST_DOUBLES = ["9007199254740993.0", "9007199254740993.00", "90071992547409930E-1", "900719925474099.3E1"]
"""2⁵³ + 1, no double, written so that parsers make a float of it."""


@pytest.mark.parametrize("kind", ["numeric", "integer"])
@pytest.mark.parametrize("text", [*PAST_DOUBLES, "9223372036854775807.0", "-9223372036854775808.0", "1E3", "2.50"])
def test_sqlite_is_given_the_very_number_however_it_is_written(kind, text):
    found = as_native(float(text), text, Column("n", kind))
    assert Decimal(found) == Decimal(text)


@pytest.mark.parametrize("text", PAST_DOUBLES)
def test_text_that_sqlite_would_read_as_another_number_is_refused(text):
    """In a column of numbers; its digits alone are read as an integer."""
    column = Column("n", "text", doubles="numbers")
    check_doubles("9007199254740993", column)
    with pytest.raises(Unfit, match="field 'n' is .*: its column would keep 9007199254740992"):
        check_doubles(text, column)


@pytest.mark.parametrize("text", PAST_DOUBLES)
def test_json_whose_numbers_become_doubles_is_refused_where_one_would_change(text):
    with pytest.raises(Unfit, match="field 'j' is"):
        as_literal({"a": float(text)}, f'{{"a":{text}}}', Column("j", "json", doubles="json"))


@pytest.mark.parametrize("text", ["1e-99999999999999999999", "0e99999999999999999999", "0.0e-99999999999999999999"])
@pytest.mark.parametrize("convert", [as_native, as_literal, as_python])
def test_an_exponent_beyond_those_of_decimal_numbers_is_refused(convert, text):
    for column in (Column("n", "numeric", doubles="numbers"), Column("n", "real"), Column("n", "json", doubles="json")):
        if (convert, column.type) not in ((as_literal, "numeric"), (as_python, "json")):
            with pytest.raises(Unfit, match=f"field 'n' is {text}"):
                convert(0.0, text, column)
    with pytest.raises(Unfit, match=f"field 'n' is {text}"):
        check_doubles(text, Column("n", "text", doubles="numbers"))  # SQLite would keep 0.0


@pytest.mark.parametrize("text", ["9007199254740993", *PAST_DOUBLES])
def test_a_driver_of_doubles_is_given_no_number_that_it_would_round(text):
    value = int(text) if text.isdigit() else float(text)
    own_text = "" if text.isdigit() else text
    assert as_python(value, own_text, Column("n", "numeric")) == Decimal(text)
    with pytest.raises(Unfit, match="field 'n' is"):
        as_python(value, own_text, Column("n", "numeric"), decimals=False)


@pytest.mark.parametrize("zoneless", [False, True])
@pytest.mark.parametrize("convert", [as_text, as_native, as_literal, as_python])
@pytest.mark.parametrize("word", ["now", "today", "infinity", "-infinity", "07/08/2026", "0001-01-01T00:00+14:00"])
def test_words_and_local_formats_are_no_times(word, convert, zoneless):
    with pytest.raises(Unfit, match="field 'at': expected a time in ISO 8601"):
        convert(word, "", Column("at", "timestamp", zoneless=zoneless))


@pytest.mark.parametrize(("zoneless", "zone"), [(False, "+00:00"), (True, "")])
def test_postgresql_is_given_a_time_as_one_of_utc(zoneless, zone):
    column = Column("at", "timestamp", zoneless=zoneless)
    for text in ("2026-07-01T01:02:03.000004+02:00", "2026-06-30 23:02:03.000004"):
        assert as_text(text, "", column) == f"2026-06-30 23:02:03.000004{zone}"
    assert as_text(None, "", column) is None
