"""Stores and sinks that the command line names by the id of a connection."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from export_queue.hooks.described import environment
from export_queue.hooks.export_queue import ExportQueueHook
from export_queue.hooks.sinks import sink_hook

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.sinks import SinkSpec


def open_store_of_connection(conn_id: str) -> Store:
    """Open the store of a connection; the caller closes it."""
    with _airflow_logs_to_stderr():
        return ExportQueueHook(conn_id).get_store()


@contextmanager
def sink_of_connection(conn_id: str, options: Mapping[str, Any]) -> Iterator[SinkSpec]:
    """Describe the sink of a connection; its secrets can be resolved during the block.

    :param options: options that the connection does not set.
    """
    with _airflow_logs_to_stderr():
        described = sink_hook(conn_id).describe(options)
    with environment(described.variables):
        yield described.spec


@contextmanager
def _airflow_logs_to_stderr() -> Iterator[None]:
    """Keep Airflow's log lines out of a command's output, and discard its remark on our connection type."""
    import structlog

    processors = structlog.get_config()["processors"]  # changed in place: loggers keep this list
    if _without_remark not in processors:
        processors.insert(0, _without_remark)
    with redirect_stdout(sys.stderr):
        yield


def _without_remark(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    import structlog

    if "RFC3986" in str(event.get("event")):
        raise structlog.DropEvent
    return event
