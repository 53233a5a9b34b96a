"""``export-queue maintain`` and ``metrics``: clean-up, and figures to watch."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from export_queue.core.cli.console import print_json, say
from export_queue.core.cli.options import AsJson, StoreOptions, command
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.maintenance import MaintenanceReport, read_metrics, render
from export_queue.core.maintenance import maintain as clean_up

HOUR = 3600.0
DAY = 24 * HOUR


@command()
def maintain(
    store: StoreOptions,
    once: Annotated[bool, typer.Option("--once", help="stop at the limit, even if more is left")] = False,
    limit: Annotated[int, typer.Option(min=1, help="rows of each subject that one round looks at")] = 100_000,
    keep_outcomes: Annotated[float, typer.Option(help="hours for which a commit's outcome can be asked")] = 24,
    keep_idempotency_keys: Annotated[
        float, typer.Option(help="days for which a unit of work is known to have taken effect")
    ] = 30,
    keep_reports: Annotated[float, typer.Option(help="days for which reports of drains can be read")] = 30,
    as_json: AsJson = False,
) -> None:
    """Delete data that nobody can read or ask for any more; safe beside everything, and to interrupt."""
    reports: list[MaintenanceReport] = []
    with store.open() as opened, StopSignals() as signals:
        _ = opened.identity
        while not reports or (reports[-1].more and not once and not signals.requested()):
            report = clean_up(
                opened.database,
                limit=limit,
                keep_outcomes=keep_outcomes * HOUR,
                keep_idempotency_keys=keep_idempotency_keys * DAY,
                keep_reports=keep_reports * DAY,
            )
            reports.append(report)
            if as_json:
                print_json(report.to_json())
            else:
                say(report.line())


@command()
def metrics(
    store: StoreOptions,
    as_json: AsJson = False,
) -> None:
    """Print figures to watch, as OpenMetrics text."""
    with store.open() as opened:
        _ = opened.identity
        found = read_metrics(opened.database)
    if as_json:
        print_json([asdict(metric) for metric in found], indented=True)
    else:
        sys.stdout.write(render(found))
