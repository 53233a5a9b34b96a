"""The text of JSON values as it is in their document, so that no digit of a number is lost (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
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
