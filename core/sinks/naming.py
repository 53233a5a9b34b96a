"""Templates of the names under which sinks keep collections: tables, indices (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from export_queue.core.errors import SinkConfigurationError

RefuseName = Callable[[str], str | None]
"""Says why the sink cannot have a name."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def first_collection(queue_id: str) -> str:
    """Name the collection that a drain feeds, where its exporter names no other one: by the queue that is added to."""
    return queue_id.partition("/")[0]


def check_template(template: str, refuse: RefuseName, *, what: str) -> None:
    """Check a template of names.

    :param what: what is named, for the message.
    :raises SinkConfigurationError: another placeholder than ``{collection}``, or a name that the sink cannot have.
    """
    if set(_PLACEHOLDER.findall(template)) - {"collection"}:
        raise SinkConfigurationError(f"{what} template {template!r}: the only placeholder is {{collection}}")
    refused = refuse(template.replace("{collection}", "c"))
    if refused:
        raise SinkConfigurationError(f"{what} template {template!r}: {refused}")


def name_collections(
    template: str, collections: Iterable[str], refuse: RefuseName
) -> tuple[dict[str, str], dict[str, str]]:
    """Name what keeps each collection.

    :returns: the name by collection, and why a collection is refused.
    """
    names: dict[str, str] = {}
    refused: dict[str, str] = {}
    for collection in collections:
        name = template.replace("{collection}", collection)
        reason = refuse(name)
        if reason:
            refused[collection] = reason
        else:
            names[collection] = name
    return names, refused
