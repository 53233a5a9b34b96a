"""What a reader is bound to: the sink's options and the exporter that decide which record an entry becomes.

The first drain that delivers something stores them with the reader. A later drain takes what it leaves out from there,
and is refused where it says something else: its records would be others, and those that exist would stay as they are.
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
"""Of the sink by name of option, and of the exporter under ``exporter``."""
_EXPORTER = "exporter"
_COLLECTION = re.compile(r"(?<!\$)\$(?:collection\b|\{collection\})")
"""The field of templates; see :mod:`export_queue.core.sinks.naming`."""


def binding_with(sink: Sink | FencedSink, exporter: str) -> Binding:
    """Return what a drain's open sink and its exporter, by name, bind a reader to."""
    return {**binding_of(sink), _EXPORTER: exporter}


def filled_in(
    database: Database, queue_id: str, sink: SinkSpec | Sink | FencedSink, exporter: object | None
) -> tuple[SinkSpec | Sink | FencedSink, object | None]:
    """Take what a drain leaves out from what its reader is bound to.

    :param queue_id: the reader; one that does not exist is left for the drain to report.
    :param sink: a description of the sink; options of an open one are as they are.
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
    if says_nothing or stored.keys() == {_EXPORTER}:  # a sink without binding(), such as a wrapper of another one
        stored, found = {_EXPORTER: stored[_EXPORTER]}, {_EXPORTER: found[_EXPORTER]}
    differing = [
        name
        for name in sorted({*stored, *found})
        if not _is_same(name, stored.get(name), found.get(name), queue, copies=stored[_EXPORTER] == COPY)
    ]
    if differing:
        raise SinkBindingError(
            f"queue {queue.id!r} drains into sink {queue.sink!r} with {_listed(stored, differing)}, "
            f"found a drain with {_listed(found, differing)}: it would write other records, and those that exist would "
            "stay as they are",
            hint=f"leave {' and '.join(differing)} out, and the drain takes what is stored; "
            + _on_purpose(queue.id, queue.sink),
        )
    return says_nothing


def _flat(binding: Binding) -> Binding:
    """Name the options of a composite sink's parts by the part: ``cache.key``."""
    parts = binding.get("parts", {}) if binding.get("kind") == "composite" else {}
    own = {name: value for name, value in binding.items() if name != "parts" or not parts}
    return own | {f"{part}.{name}": value for part in parts for name, value in _flat(parts[part]).items()}


def _on_purpose(queue_id: str, sink: str | None) -> str:
    return (
        f"to change it on purpose: export-queue rebind {queue_id} {shlex.quote(str(sink))}; the next drain stores its "
        "own options, and what was drained before has to be delivered again"
    )


def _listed(binding: Binding, names: list[str]) -> str:
    return ", ".join(f"{name}={binding.get(name)!r}" for name in names)


def _is_same(name: str, stored: Any, found: Any, queue: Queue, *, copies: bool) -> bool:
    if name == _EXPORTER:
        return bool(stored == found) or _is_same_object(stored, found)
    texts = [json.dumps(value) for value in (stored, found)]  # dictionaries too are compared in their order
    if copies:  # all its records are of one collection, whether a template names it or not
        texts = [_COLLECTION.sub(first_collection(queue.id), text) for text in texts]
    return texts[0] == texts[1]


def _is_same_object(stored: str, found: str) -> bool:
    """Return whether two names lead to one exporter, as where a package re-exports it."""
    with contextlib.suppress(ExporterError):
        return import_object(stored, error=ExporterError) is import_object(found, error=ExporterError)
    return False
