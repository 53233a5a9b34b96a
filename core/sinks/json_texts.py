"""JSON as it stands in a document, so that no digit of a number is lost (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_MARK = re.compile(rf"{_STRING}|[\[\]{{}}]")
_SCALAR = re.compile(rf"{_STRING}|[^,\]}}\s]+")
_NUMBER = re.compile(rf"{_STRING}|(-?[0-9][0-9.eE+-]*)")


def texts_of(document: str) -> dict[str, str]:
    """Cut an object, which is known to be valid, into its fields: by name, the text of its value."""
    texts: dict[str, str] = {}
    at = document.index("{") + 1
    while (at := _skip(document, at)) < len(document) and document[at] != "}":
        name, at = scanstring(document, at + 1)
        start = _skip(document, document.index(":", at) + 1)
        end = _end(document, start)
        texts[name] = document[start:end]
        at = _skip(document, end)
        at += document[at] == ","
    return texts


def numbers_in(text: str) -> Iterator[str]:
    """Return the numbers of a JSON text, nested ones too, as they stand there."""
    return (found[1] for found in _NUMBER.finditer(text) if found[1])


def _end(text: str, start: int) -> int:
    """Find the end of a value, not by recursion: JSON may be nested deeper than Python calls."""
    if text[start] not in "[{":
        found = _SCALAR.match(text, start)
        assert found is not None
        return found.end()
    depth = 0
    for mark in _MARK.finditer(text, start):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark[0], 0)
        if not depth:
            return mark.end()
    raise ValueError("the JSON has no end")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
