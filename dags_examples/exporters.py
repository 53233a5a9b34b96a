"""Exporters of the examples; they stand apart from the DAGs, so that Spark's environment can import them."""

from __future__ import annotations

from collections.abc import Iterator

from export_queue import Delete, Entry, Put


def as_row(entry: Entry) -> Iterator[Put | Delete]:
    """Turn a customer's total into a row of the table ``totals``; no value deletes it."""
    if entry.value is None:
        yield Delete("totals", entry.key)
    else:
        yield Put("totals", entry.key, {"customer": entry.key, "total": entry.value["total"]})
