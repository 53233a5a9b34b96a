"""Passwords stay off command lines, which every user of the machine can read."""

from __future__ import annotations

from typing import Any

import typer

from export_queue.core.errors import InvalidArgument
from export_queue.core.references import has_password


def refuse_passwords(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Refuse URLs with a password in them, unless the environment gives them; the callback of an option.

    :raises InvalidArgument: a URL holds one; it is not repeated.
    """
    source = context.get_parameter_source(parameter.name or "")
    given = value if isinstance(value, list | tuple) else [value]
    if "" in given:
        raise typer.BadParameter("expected a name, found nothing")
    if source is not None and source.name == "ENVIRONMENT":
        return value
    if any(isinstance(text, str) and has_password(text) for text in given):
        raise InvalidArgument(
            f"{parameter.opts[0]}: the URL holds a password, which a command line shows to every user of the machine",
            hint="put the URL into a variable and name that: env:NAME; or leave the password out, and name it: "
            "--password env:NAME of a store, --sink-secret password=env:NAME of a sink",
        )
    return value
