"""The command line, called in this process: a process of its own would take a second to start, for each command."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from unittest import mock

import typer.main

from export_queue.core.cli import main

_command_of = cache(typer.main.get_command)
"""Typer makes the tree of commands anew for each call, which takes longer than most commands."""


def without_connections(text: str) -> str:
    """Return a text whose calls of ``airflow export-queue`` lack the options that the program itself does not have."""
    return re.sub(
        r"airflow export-queue[^`\n]*", lambda call: re.sub(r" --(?:sink-)?conn-id[ =][^\s`]+", "", call[0]), text
    )


def run_cli(*arguments: str, url: str, status: int = 0, complaint: bool = True) -> str:
    """Run ``export-queue`` on a store.

    :param url: the store's, given by the environment.
    :param status: the exit status that is expected.
    :param complaint: whether to return the standard error where the status is not 0.
    :returns: otherwise the standard output.
    """
    told, complained = io.StringIO(), io.StringIO()
    found: object = 0
    with (
        mock.patch.dict(os.environ, {"EXPORT_QUEUE_STORE": url, "COLUMNS": "200"}),
        mock.patch.object(typer.main, "get_command", _command_of),
        mock.patch.object(sys, "argv", ["export-queue", *arguments]),
        redirect_stdout(told),
        redirect_stderr(complained),
    ):
        try:
            main()
        except SystemExit as end:
            found = end.code or 0
    if isinstance(found, str):  # the interpreter prints such a code, and ends with status 1
        complained.write(found + "\n")
        found = 1
    assert found == status, told.getvalue() + complained.getvalue()
    return complained.getvalue() if status and complaint else told.getvalue()
