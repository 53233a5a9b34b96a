"""A sink: its options, packages and secrets, and whether its target answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from export_queue.core.doctor.check import Check, checked
from export_queue.core.sinks import ProbedSink, SinkSpec, call_sink, opened_sink

_EXTRAS_OF_URLS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


def extras_of_sink(spec: SinkSpec) -> set[str]:
    """Return the extras of this library that a sink needs."""
    found = set()
    for part in spec.leaves():
        if part.kind in ("redis", "elasticsearch", "opensearch"):
            found.add(part.kind)
        elif part.kind == "sql" and isinstance(url := part.options.get("url"), str):
            found.add(_EXTRAS_OF_URLS.get(sa.make_url(url).get_backend_name(), ""))
    return found - {""}


def _sqlite_file(part: SinkSpec) -> Path | None:
    """Return the file of a SQLite database, which connecting to it would create."""
    url = part.options.get("url")
    if part.kind != "sql" or not isinstance(url, str):
        return None
    parsed = sa.make_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def examine_sink(spec: SinkSpec) -> Iterator[Check]:
    """Check each part of a sink: open it, and ask its target once. Nothing is written."""
    for part in spec.leaves():
        subject = f"sink {part.name}"
        yield from checked(subject, partial(_examine, part, subject))


def _examine(part: SinkSpec, subject: str) -> Iterator[Check]:
    file = _sqlite_file(part)
    if file is not None:
        needed = [one for one in (file, file.parent) if one.exists()]
        refused = [str(one) for one in needed if not os.access(one, os.R_OK | os.W_OK)]
        if not file.parent.is_dir():
            yield Check.error(
                subject, f"SQLite file {file}: {file.parent} is no folder", fix="create the folder, or correct the URL"
            )
            return
        if refused:
            fix = "let the user of this process read and write them (chown, chmod): SQLite keeps a log next to the file"
            yield Check.error(subject, f"not readable and writable: {', '.join(refused)}", fix=fix)
            return
        if not file.exists():
            yield Check.ok(subject, f"SQLite file {file} does not exist; the first drain creates it")
            return
    with opened_sink(part) as sink:
        if isinstance(sink, ProbedSink):
            yield Check.ok(subject, str(call_sink(sink, "probe")))
        else:
            yield Check.ok(subject, f"{type(sink).__name__} opens; it has no probe(), so its target was not asked")
