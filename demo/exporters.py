"""The exporters: an entry becomes records of a store."""

from __future__ import annotations

from collections.abc import Iterator

from export_queue import Delete, Entry, Put


def count_index(entry: Entry) -> Iterator[Put | Delete]:
    """Move an aircraft in the index "count → aircraft" from its old count to its new one.

    Source: the example of Fluo's export queue recipe. Where both counts are the same, the put wins.
    """
    old, new = entry.value["old"], entry.value["new"]
    yield Put("count_index", f"{new:06}/{entry.key}", {"flights": new, "aircraft": entry.key})
    yield Delete("count_index", f"{old:06}/{entry.key}")
