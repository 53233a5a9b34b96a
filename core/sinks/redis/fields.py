"""From a JSON object to the fields of a Redis hash (pure)."""

from __future__ import annotations

from typing import Any

import orjson

from export_queue.core.sinks.json_texts import texts_of

_KINDS = {list: "array", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}


def fields_of(document: bytes) -> list[bytes]:
    """Return the names and values of a document's fields, alternately.

    A string is written as its text, any other value as its JSON in the document, so that no digit is lost. A null
    field is left out.

    :raises ValueError: the document is not a JSON object with a field, or is nested too deeply.
    """
    try:
        found = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the document is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"the document is a JSON {_KINDS[type(found)]}, expected an object")
    # an integer that is larger than 64 bits comes as a float
    texts = texts_of(document) if any(type(v) in (float, list, dict) for v in found.values()) else {}
    fields: list[bytes] = []
    for name, value in found.items():
        if value is not None:
            fields += (name.encode(), _text(value, texts.get(name, "")))
    if not fields:
        raise ValueError("the document has no field: a hash in Redis has at least one")
    return fields


def _text(value: Any, raw: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"%d" % value if isinstance(value, int) else raw.encode()
