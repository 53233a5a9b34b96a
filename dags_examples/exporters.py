"""Exporters of the examples, in their own module so that Spark's environment can import them."""

from __future__ import annotations

from collections.abc import Iterator

from export_queue import Delete, Entry, Put


def as_row(entry: Entry) -> Iterator[Put | Delete]:
    """Turn the visits of a page into a row of the table ``pages``; no value deletes the row."""
    if entry.value is None:
        yield Delete("pages", entry.key)
    else:
        yield Put("pages", entry.key, {"page": entry.key, "visits": entry.value["visits"]})


# [START exporters]
def by_city(entry: Entry) -> Iterator[Put | Delete]:
    """Turn the move of a customer into records of an index: ``Oslo/anna``."""
    former, city = entry.value["former"], entry.value["city"]
    if former is not None:
        yield Delete("by_city", f"{former}/{entry.key}")
    if city is not None:
        yield Put("by_city", f"{city}/{entry.key}", {"customer": entry.key})


# [END exporters]
