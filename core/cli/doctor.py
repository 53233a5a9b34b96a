"""``export-queue doctor``: what is wrong with an installation, and how to repair it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import typer

from export_queue.core.cli.console import FAILED, Result
from export_queue.core.cli.naming import search_current_folder
from export_queue.core.cli.options import AsJson, SinkName, SinkOptions, SinkTextIfAny, StoreOptions, command
from export_queue.core.doctor import Check, examine_sink, examine_software, examine_store, extras_of_sink
from export_queue.core.errors import ExportQueueError

Opened = TypeVar("Opened")


@command()
def doctor(
    store: StoreOptions,
    sink_options: SinkOptions,
    sink: SinkTextIfAny = None,
    sink_name: SinkName = None,
    as_json: AsJson = False,
) -> Iterator[Result]:
    """Check versions, configuration, rights, clocks, connections and places of files, and name the fix of each fault.

    With --sink, also check that the sink answers. Nothing is changed. Status 1 means that there are errors.
    """
    search_current_folder()
    with contextlib.ExitStack() as stack:
        checks: list[Check] = []
        opened = _entered(stack, store.open, "store", checks)
        described = None
        if sink is not None:
            described = _entered(stack, lambda: sink_options.describe(sink, name=sink_name), "sink", checks)
        extras = set() if described is None else extras_of_sink(described)
        if opened is not None and opened.database.dialect.server is not None:
            extras.add("postgres")
        checks = [*examine_software(extras), *checks]
        checks += [] if opened is None else examine_store(opened.database)
        checks += [] if described is None else examine_sink(described)
    yield Result(json=[one.to_json() for one in checks], lines=[*_lines(checks)])
    if any(one.level == "error" for one in checks):
        raise typer.Exit(FAILED)


def _entered(
    stack: contextlib.ExitStack, enter: Callable[[], AbstractContextManager[Opened]], subject: str, checks: list[Check]
) -> Opened | None:
    """Enter a context for the rest of the command; an error becomes a check."""
    try:
        return stack.enter_context(enter())
    except ExportQueueError as error:
        checks.append(Check.failed(subject, error))
        return None


def _lines(checks: list[Check]) -> Iterator[str]:
    for one in checks:
        yield f"{one.level:<8} {one.subject}: {one.found}"
        if one.fix is not None:
            yield f"         fix: {one.fix}"
    counts = [(sum(one.level == level for one in checks), level) for level in ("error", "warning")]
    yield f"{len(checks)} checks: " + ", ".join(f"{count} {level}{'s' * (count != 1)}" for count, level in counts)
