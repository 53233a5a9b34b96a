"""``airflow export-queue …``: the command line of this package as a command of Airflow's."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg

_OPTIONS = {
    "--conn-id": ("conn_id", "EXPORT_QUEUE_STORE", "--store"),
    "--sink-conn-id": ("sink_conn_id", "EXPORT_QUEUE_SINK", "--sink"),
}
"""The options of connections: name of the value, the variable that stands for it, and the option that it replaces."""

_DESCRIPTION = (
    "All commands of the program export-queue, on connections of Airflow. `airflow export-queue` lists them, and "
    "`airflow export-queue COMMAND --help` explains one. Options of connections may stand before or after the command."
)


def get_cli_commands() -> list[ActionCommand]:
    """Return the commands that Airflow's command line gets from this provider."""
    connection = Arg(("--conn-id",), help="connection of the store; by default export_queue_default", metavar="ID")
    sink = Arg(("--sink-conn-id",), help="connection of the sink, for commands that take one", metavar="ID")
    rest = Arg(("arguments",), nargs=argparse.REMAINDER, help="a command of export-queue, and its arguments")
    return [
        ActionCommand(
            name="export-queue",
            help="Set up a store of export queues, inspect it, and drain its queues",
            description=_DESCRIPTION,
            func=run,
            args=(connection, sink, rest),
        )
    ]


def run(parsed: Any) -> None:
    """Run a command of export-queue; it ends the process with its own exit status.

    :param parsed: what Airflow has parsed: ``conn_id``, ``sink_conn_id`` and ``arguments``.
    """
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from export_queue.core.cli import main
    from export_queue.hooks import ExportQueueHook

    redirect_stdout_log_handlers_to_stderr()  # so that no line of the log is between the lines of a result
    arguments = list(parsed.arguments)
    for option, (name, variable, replaced) in _OPTIONS.items():
        chosen = _taken_out(arguments, option) or getattr(parsed, name)
        if chosen is not None and any(one.partition("=")[0] == replaced for one in arguments):
            sys.exit(f"expected one of {option} and {replaced}, found both: leave one out")
        if chosen is not None:
            os.environ[variable] = f"airflow:{chosen}"
    os.environ.setdefault("EXPORT_QUEUE_STORE", f"airflow:{ExportQueueHook.default_conn_name}")
    main(arguments, name="airflow export-queue")


def _taken_out(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from arguments, and return the value; None if it is not among them."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for at, word in enumerate(arguments[:end]):
        name, equals, value = word.partition("=")
        if name == option and equals:
            del arguments[at]
            return value
        if name == option:
            if at + 1 == end:
                sys.exit(f"{option}: expected the id of a connection, found nothing")
            value = arguments[at + 1]
            del arguments[at : at + 2]
            return value
    return None
