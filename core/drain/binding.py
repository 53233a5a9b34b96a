"""The binding of a reader: the sink's options and the exporter, which decide the record that an entry becomes.

The first drain that delivers something stores them with the reader. A later drain uses the stored ones for all that it
omits, and is refused if it gives others: it would write other records, and the existing ones would become stale.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from export_queue.core.drain.exporters import COPY
from export_queue.core.errors import ExporterError, SinkBindingError
from export_queue.core.queue import Queue
from export_queue.core.references import import_object
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, binding_of, first_collection
from export_queue.core.store import Database, queries

Binding = Mapping[str, Any]
"""The sink's options by name, and the exporter under ``exporter``."""
_EXPORTER = "exporter"
_COLLECTION = re.compile(r"(?<!\$)\$(?:collection\b|\{collection\})")
"""The field of templates; see :mod:`export_queue.core.sinks.naming`."""


def binding_with(sink: Sink | FencedSink, exporter: str) -> Binding:
    """Return the binding of an open sink and the name of an exporter."""
    return {**binding_of(sink), _EXPORTER: exporter}


def filled_in(
    database: Database, queue_id: str, sink: SinkSpec | Sink | FencedSink, exporter: object | None
) -> tuple[SinkSpec | Sink | FencedSink, object | None]:
    """Complete a sink and an exporter from the binding of the reader.

    :param queue_id: the reader. If it does not exist, the drain reports it.
    :param sink: a description of the sink; an open sink is returned unchanged.
    :param exporter: the exporter, or None.
    :raises SinkBindingError: the reader's exporter cannot be found by its name.
    """
    with database.read() as work:
        row = queries.queues.queue_row(work, queue_id)
    if row is None or row["binding"] is None:
        return sink, exporter
    stored = json.loads(row["binding"])
    if exporter is None and (name := stored.pop(_EXPORTER)) != COPY:
        if "<" in name:
            raise SinkBindingError(
                f"queue {queue_id!r} is drained with exporter {name}, which no other program can import",
                hint=f"pass that exporter; {_on_purpose(queue_id, row['sink'])}",
            )
        exporter = name
    return (sink.filled_in(stored) if isinstance(sink, SinkSpec) else sink), exporter


def check_binding(queue: Queue, found: Binding) -> bool:
    """Compare what a drain would write with what its reader is bound to; of a sink without ``binding``, the exporter.

    :returns: whether what is stored may stay as it is.
    :raises SinkBindingError: they differ; the error names each option.
    """
    if queue.binding is None:
        return False
    if json.dumps(found) == queue.binding:
        return True
    stored, found = _flat(json.loads(queue.binding)), _flat(found)
    says_nothing = found.keys() == {_EXPORTER}
    if says_nothing or stored.keys() == {_EXPORTER}:  # a sink without binding(), such as a wrapper
        stored, found = {_EXPORTER: stored[_EXPORTER]}, {_EXPORTER: found[_EXPORTER]}
    differing = [
        name
        for name in sorted({*stored, *found})
        if not _is_same(name, stored.get(name), found.get(name), queue, copies=stored[_EXPORTER] == COPY)
    ]
    if differing:
        raise SinkBindingError(
            f"queue {queue.id!r} drains into sink {queue.sink!r} with {_listed(stored, differing)}, "
            f"found a drain with {_listed(found, differing)}: it would write other records, and existing ones would "
            "become stale",
            hint=f"omit {' and '.join(differing)} to use the stored values; " + _on_purpose(queue.id, queue.sink),
        )
    return says_nothing


def _flat(binding: Binding) -> Binding:
    """Return a binding in which options of a composite sink's parts are named like ``cache.key``."""
    parts = binding.get("parts", {}) if binding.get("kind") == "composite" else {}
    own = {name: value for name, value in binding.items() if name != "parts" or not parts}
    return own | {f"{part}.{name}": value for part in parts for name, value in _flat(parts[part]).items()}


def _on_purpose(queue_id: str, sink: str | None) -> str:
    return (
        f"to change them: export-queue rebind {queue_id} {shlex.quote(str(sink))}; the next drain stores its own "
        "options, and earlier entries must be delivered again"
    )


def _listed(binding: Binding, names: list[str]) -> str:
    return ", ".join(f"{name}={binding.get(name)!r}" for name in names)


def _is_same(name: str, stored: Any, found: Any, queue: Queue, *, copies: bool) -> bool:
    if name == _EXPORTER:
        return bool(stored == found) or _is_same_object(stored, found)
    texts = [json.dumps(value) for value in (stored, found)]  # the order of dictionaries counts
    if copies:  # all records are in one collection, whether a template names it or not
        texts = [_COLLECTION.sub(first_collection(queue.id), text) for text in texts]
    return texts[0] == texts[1]


def _is_same_object(stored: str, found: str) -> bool:
    """Return whether two import paths lead to the same exporter, for example if a package re-exports it."""
    with contextlib.suppress(ExporterError):
        return import_object(stored, error=ExporterError) is import_object(found, error=ExporterError)
    return False
