"""``export-queue observe``: a process that calls observers."""

from __future__ import annotations

import inspect
import logging
from random import Random
from typing import Annotated

import typer

from export_queue.core.callables import returned
from export_queue.core.cli.console import show_log
from export_queue.core.cli.loading import load_function
from export_queue.core.cli.options import StoreOptions, command
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.errors import InvalidArgument
from export_queue.core.observers import Processed, work

ROUND = 1000
"""Observers that are called between two looks for new notifications."""

log = logging.getLogger("export_queue.observers")


@command()
def observe(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="function that takes the store and registers observers")
    ],
    store: StoreOptions,
    poll: Annotated[float, typer.Option(min=0.01, help="seconds between two looks when nothing is due")] = 1.0,
    timeout: Annotated[float, typer.Option(help="seconds that one observer's transaction may take")] = 30.0,
) -> None:
    """Call observers until SIGTERM or Ctrl-C comes; the transaction at hand is ended first.

    The module is looked for in the current folder too. Several such processes share the work.
    """
    show_log()
    with store.open() as opened, StopSignals() as signals:
        register = load_function(target)
        try:
            inspect.signature(register).bind(opened)
        except TypeError as error:
            raise InvalidArgument(
                f"{target}: expected a function that takes the store, found another: {error}"
            ) from None
        returned(register(opened), target)
        log.info("observing %s; SIGTERM ends this", opened.url_safe)

        def one_round() -> Processed:
            return opened.process_notifications(limit=ROUND, timeout=timeout, stop=signals.requested)

        total = work(one_round, stopped=signals.requested, wait=signals.wait, poll=poll, random=Random())
    log.info("stopped: %d done, %d conflicted, %d failed", total.done, total.conflicted, total.failed)
