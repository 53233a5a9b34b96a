"""The text of JSON values as it is in their document, so that no digit of a number is lost (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import orjson

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INEXACT = re.compile(rb"[0-9][.eE]|[0-9]{19}")
"""Where a number may be rounded, or written in several ways."""
_NUMBER = re.compile(r'"(?:[^"\\]++|\\.)*+"|(-?[0-9][0-9.eE+-]*)')


def texts_of(document: bytes) -> dict[str, str]:
    """Return the text of each field's value, by name.

    :param document: a valid JSON object.
    :raises ValueError: it is nested too deeply.
    """
    try:
        return {name: bytes(value).decode() for name, value in _DECODER.decode(document).items()}
    except RecursionError:
        raise ValueError("the document is nested too deeply: expected fewer than about 1000 levels") from None


def numbers_in(text: str) -> Iterator[str]:
    """Yield the texts of all numbers in a JSON text, also of nested ones."""
    return (found[1] for found in _NUMBER.finditer(text) if found[1])


def normal_json(document: bytes | str) -> bytes:
    """Return JSON in a normal form: two texts have the same if they differ in spaces, the order of fields, or the
    notation of numbers only.

    :raises ValueError: the text is not JSON.
    """
    text = document.encode() if isinstance(document, str) else document
    if not _INEXACT.search(text):
        try:
            return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass  # lone surrogates, or no JSON
    value = json.loads(text, parse_int=_number, parse_float=_number)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _number(text: str) -> Any:
    number = Decimal(text)
    if number.adjusted() < 19 and number == number.to_integral_value():
        return int(number)
    as_float = float(number)
    return as_float if Decimal(repr(as_float)) == number else {"\0": normal_decimal(number)}


def normal_decimal(number: Decimal) -> str:
    """Return a number as text, the same for all its notations."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return str(number)  # NaN or infinite
    written = "".join(map(str, digits)).lstrip("0")
    kept = written.rstrip("0")
    return f"{'-' if sign else ''}{kept}e{exponent + len(written) - len(kept)}" if kept else "0"
