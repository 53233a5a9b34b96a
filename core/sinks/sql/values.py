"""How the fields of documents become values of columns: unchanged, or not at all (pure).

Functions get a field's value and, if parsing may have rounded it, its own text.

A number is passed to its column as its own text, or in a form that preserves the number. If the column would store
another number, the operation is refused. Only a column of doubles (``real``) rounds, since its type says so. A time
without a zone is in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from export_queue.core.sinks.json_texts import numbers_in, texts_of
from export_queue.core.sinks.sql.tables import INT64, Column, Unfit

_NUMERAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
"""The texts that SQLite reads as numbers."""
_UINT64 = range(-(1 << 63), 1 << 64)


def fields_of(document: bytes, columns: tuple[Column, ...]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return a document's fields, and the texts of fields that parsing may have rounded."""
    fields = parsed(document)
    if not isinstance(fields, dict):
        raise Unfit(f"the document is not a JSON object but {type(fields).__name__}: it has no fields for columns")
    # an integer of more than 64 bits is parsed as a float
    rounded = any(type(fields.get(column.name)) in (float, list, dict) for column in columns)
    try:
        return fields, texts_of(document) if rounded else {}
    except ValueError as error:
        raise Unfit(str(error)) from None


def parsed(document: bytes) -> object:
    """Parse a document, or raise Unfit."""
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise Unfit(f"the document is not JSON: {error}") from None


def check_places(value: object, text: str, column: Column) -> None:
    """Refuse a number with more decimal places than its column keeps, since databases silently round it."""
    if column.places is None or not isinstance(value, float | str):
        return
    number = _number(text if isinstance(value, float) else value)
    if number is not None and _places(number) > column.places:
        raise Unfit(
            f"field {column.name!r} is {_shown(text or str(value))}: its column keeps {column.places} decimal places"
        )


def check_doubles(text: str, column: Column) -> None:
    """Refuse a text, or JSON, with numbers that a column would change, though it is not a column of numbers."""
    if column.doubles == "json":
        for found in numbers_in(text):
            if not (len(found) < 21 and found.lstrip("-").isdigit() and int(found) in _UINT64):
                _require_double(_exact(found, column), found, column)
    elif column.doubles == "numbers" and _NUMERAL.fullmatch(text):
        number = _exact(text, column)
        is_integer = text.strip().lstrip("+-").isdecimal() and _is_whole(number)
        if not is_integer:  # with a point or an exponent it would be read as a double
            _require_double(number, text, column)


def check_kind(value: object, text: str, column: Column) -> None:
    """Refuse other values than numbers for a column of numbers that would keep them, as SQLite does."""
    if not column.takes or value is None or isinstance(value, bool):
        return
    shown = text if isinstance(value, float | list | dict) else str(value)
    number = _number(shown.strip()) if _NUMERAL.fullmatch(shown) else None
    expected, fits = {
        "integers": ("an integer of 64 bits", number is not None and _is_whole(number)),
        "numbers": ("a number", number is not None),
        "booleans": ("true or false", number is not None and number in (0, 1)),
    }[column.takes]
    if not fits:
        found = repr(value) if isinstance(value, str) else shown
        raise Unfit(f"field {column.name!r}: expected {expected}, found {found:.100}")


def as_text(value: object, text: str, column: Column) -> Any:
    """Convert a field for a database that reads values of any type from text."""
    if value is None:
        return None
    if column.type == "timestamp":  # the database would accept words such as "now", and drop zones
        return _utc(value, column) if column.zoneless else _moment(value, column).isoformat(" ")
    return _text(value, text, column)


def as_native(value: object, text: str, column: Column) -> Any:
    """Convert a field for SQLite, whose numbers are integers of 64 bits and doubles."""
    check_kind(value, text, column)
    if column.type == "timestamp" and value is not None:
        return _utc(value, column)
    if column.type in ("text", "json") or not isinstance(value, int | float):
        return _checked(_text(value, text, column), column)
    if isinstance(value, float):
        if column.type == "real":
            _require_not_lost(value, text, column)
            return value
        number = _exact(text, column)
        if _is_whole(number):
            return int(number)  # with its last digits, which the float may lack
        _require_double(number, text, column)
    elif value not in INT64:
        raise Unfit(f"field {column.name!r} is an integer of more than 64 bits")
    return value


def as_literal(value: object, text: str, column: Column) -> Any:
    """Convert a field for MySQL, which reads numbers exactly from literals, and whose timestamps have no zones."""
    if value is None:
        return None
    if column.type == "timestamp":
        return _utc(value, column)
    if column.type == "real" and isinstance(value, float):
        _require_not_lost(value, text, column)
        return value
    if column.type in ("text", "json") or not isinstance(value, int):
        return _checked(_text(value, text, column), column)
    return value


def as_python(value: object, text: str, column: Column, *, decimals: bool = True) -> Any:
    """Convert a field to the Python type that SQLAlchemy expects for its column.

    :param decimals: whether the driver takes decimal numbers; otherwise they are passed as doubles.
    """
    if value is None or column.type in ("text", "json"):
        return None if value is None else _text(value, text, column)
    if column.type == "timestamp":
        moment = _moment(value, column)
        return moment.replace(tzinfo=None) if column.zoneless else moment
    wanted: tuple[type, ...] = {"boolean": (bool,), "integer": (int,)}.get(column.type, (int, float))
    if not isinstance(value, wanted) or (isinstance(value, bool) and column.type != "boolean"):
        raise Unfit(f"field {column.name!r}: expected {column.type}, found {value!r:.100}")
    if column.type == "numeric":
        number = _exact(text, column) if text else Decimal(int(value))  # type: ignore[call-overload]
        if not decimals:
            _require_double(number, text or str(value), column)  # the driver converts whole numbers to doubles, too
        return number
    return as_native(value, text, column)


def _checked(text: str | None, column: Column) -> str | None:
    if text is not None and column.doubles:
        check_doubles(text, column)
    return text


def _text(value: object, text: str, column: Column) -> Any:
    if value is None:
        return None
    if isinstance(value, float | list | dict):
        return text
    found = value if isinstance(value, str) and column.type != "json" else orjson.dumps(value).decode()
    if "\0" in found:
        raise Unfit(f"field {column.name!r} contains a NUL, which SQL text cannot hold")
    return found


def _utc(value: object, column: Column) -> str:
    return _moment(value, column).replace(tzinfo=None).isoformat(" ")


def _moment(value: object, column: Column) -> datetime:
    if not isinstance(value, str):  # 20260701 would be read as a day
        raise Unfit(f"field {column.name!r}: expected a time in ISO 8601, as text, found {value!r:.100}")
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unfit(f"field {column.name!r}: expected a time in ISO 8601, found {value!r:.100}") from None


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _exact(text: str, column: Column) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Unfit(f"field {column.name!r} is {_shown(text)}: its exponent has too many digits") from None


def _places(number: Decimal) -> int:
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = next((i for i, digit in enumerate(reversed(digits)) if digit), None)
    return 0 if zeros is None else max(0, -exponent - zeros)


def _is_double(number: Decimal) -> bool:
    """Return whether the shortest text of the nearest double is this number."""
    return Decimal(repr(float(number))) == number


def _is_whole(number: Decimal) -> bool:
    """Return whether a number is an integer of 64 bits."""
    return number.adjusted() < 20 and number == number.to_integral_value() and int(number) in INT64


def _require_double(number: Decimal, text: str, column: Column) -> None:
    if not _is_double(number):
        raise Unfit(f"field {column.name!r} is {_shown(text)}: its column would keep {float(number)!r}")


def _require_not_lost(value: float, text: str, column: Column) -> None:
    """Refuse a number that has become zero because it is too small for a double."""
    if value == 0 and _exact(text, column) != 0:
        raise Unfit(f"field {column.name!r} is {_shown(text)}, which is too small for a double")


def _shown(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
