"""``export-queue observe``: a process that calls observers."""

from __future__ import annotations

import inspect
import logging
from random import Random
from typing import Annotated

import typer

from export_queue.core.callables import returned
from export_queue.core.cli.console import show_log
from export_queue.core.cli.naming import load_function
from export_queue.core.cli.options import command
from export_queue.core.cli.stopping import StopSignals
from export_queue.core.client import Store
from export_queue.core.errors import InvalidArgument
from export_queue.core.observers import Processed, work

ROUND = 1000
"""Maximum number of observers called between two polls for new notifications."""

log = logging.getLogger("export_queue.observers")


@command()
def observe(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="function that takes the store and registers observers")
    ],
    store: Store,
    poll: Annotated[float, typer.Option(min=0.01, help="seconds between two polls when nothing is due")] = 1.0,
    timeout: Annotated[float, typer.Option(help="time limit of one observer's transaction, in seconds")] = 30.0,
) -> None:
    """Call observers until SIGTERM or Ctrl-C; the current transaction is finished first.

    The module may also be in the current folder. Several such processes share the work.
    """
    show_log()
    with StopSignals() as signals:
        register = load_function(target)
        try:
            inspect.signature(register).bind(store)
        except TypeError as error:
            raise InvalidArgument(f"{target}: expected a function that takes the store: {error}") from None
        returned(register(store), target)
        log.info("observing %s; SIGTERM ends this", store.url_safe)

        def one_round() -> Processed:
            return store.process_notifications(limit=ROUND, timeout=timeout, stop=signals.requested)

        total = work(one_round, stopped=signals.requested, wait=signals.wait, poll=poll, random=Random())
    log.info("stopped: %d done, %d conflicted, %d failed", total.done, total.conflicted, total.failed)
