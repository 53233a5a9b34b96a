"""Stores and sinks that a person names on the command line by the id of a connection."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from export_queue.hooks.described import environment
from export_queue.hooks.export_queue import ExportQueueHook
from export_queue.hooks.sinks import sink_hook

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.sinks import SinkSpec

_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


def open_store_of_connection(conn_id: str) -> Store:
    """Open the store that a connection leads to; the caller closes it.

    :param conn_id: id of the connection.
    """
    with _as_airflows_own_commands():
        return ExportQueueHook(conn_id).get_store()


@contextmanager
def sink_of_connection(conn_id: str, options: Mapping[str, Any]) -> Iterator[SinkSpec]:
    """Describe the sink that a connection leads to, for a block in which its secrets can be found.

    :param conn_id: id of the connection.
    :param options: options that the connection does not give.
    """
    with _as_airflows_own_commands():
        described = sink_hook(conn_id).describe(options)
    with environment(described.variables):
        yield described.spec


def _as_airflows_own_commands() -> AbstractContextManager[None]:
    # Outside of a task Airflow asks variables and secrets backends only, unless a process says that it may use
    # Airflow's database: a person's command line may, where `airflow connections` does.
    return nullcontext() if _CONTEXT in os.environ else environment({_CONTEXT: "server"})
