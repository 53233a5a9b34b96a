"""The options that commands share, and groups of them: a parameter of a command may stand for several options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from export_queue.core.cli.console import app
from export_queue.core.cli.naming import named_sink, open_named_store
from export_queue.core.cli.passwords import refuse_passwords
from export_queue.core.client import Store
from export_queue.core.sinks import SinkSpec

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., None])

SINK_NAMES = "URL, SINK.json, module:factory, env:NAME or the id of an Airflow connection"

QueueId = Annotated[str, typer.Argument(metavar="QUEUE", help="id of the queue")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Who = Annotated[str | None, typer.Option(help="name for the record; by default user and host")]
Complete = Annotated[
    bool, typer.Option("--complete", help="promise that the sink lacks nothing; the promise is recorded")
]
SinkText = Annotated[
    str,
    typer.Option("--sink", envvar="EXPORT_QUEUE_SINK", callback=refuse_passwords, help=f"the sink: {SINK_NAMES}"),
]
SinkName = Annotated[
    str | None, typer.Option("--sink-name", help="what the queue is bound to; by default the sink's own name")
]


def command(name: str | None = None, *, of: typer.Typer = app) -> Callable[[AnyCommand], AnyCommand]:
    """Add a function to a program as a command.

    A parameter whose type is a dataclass becomes one option for each field, and the function gets the object.

    :param name: of the command; by default the function's.
    :param of: the program.
    """

    def added(function: AnyCommand) -> AnyCommand:
        types = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {parameter: group for parameter, group in types.items() if is_dataclass(group)}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in groups:
                parameters += _options_of(groups[parameter.name])
            else:
                parameters.append(parameter.replace(annotation=types[parameter.name]))

        def run(**values: Any) -> None:
            for parameter, group in groups.items():
                values[parameter] = group(**{one.name: values.pop(one.name) for one in fields(group)})
            function(**values)

        named: Any = run
        named.__name__, named.__doc__ = function.__name__, function.__doc__
        # Keyword-only, so that an option with a default may precede one without.
        in_words = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        named.__signature__ = inspect.Signature(in_words)
        of.command(name)(named)
        return function

    return added


def _options_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=types[one.name],
        )
        for one in fields(group)
    ]


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options that name a store."""

    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="EXPORT_QUEUE_STORE",
            callback=refuse_passwords,
            help="sqlite:///path, postgresql://user@host/db, env:NAME of such a URL, or an Airflow connection's id",
        ),
    ]
    password: Annotated[
        str | None,
        typer.Option(
            "--password", help="reference to the password: env:NAME, file:PATH or module:function; never the password"
        ),
    ] = None
    schema: Annotated[
        str | None, typer.Option("--schema", help="PostgreSQL schema that holds the store; by default export_queue")
    ] = None
    behind_pooler: Annotated[
        bool,
        typer.Option("--behind-pooler", help="the URL leads to a pooler in transaction mode, such as PgBouncer's"),
    ] = False

    def open(self) -> Store:
        """Open the store; leaving a ``with`` block closes it."""
        return open_named_store(
            self.store, password=self.password, schema=self.schema, behind_pooler=self.behind_pooler
        )


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The options that complete the name of a sink."""

    sink_option: Annotated[
        list[str] | None,
        typer.Option(
            "--sink-option",
            metavar="NAME=VALUE",
            help="an option that the name of the sink does not give; JSON, or text",
        ),
    ] = None
    sink_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--sink-secret",
            metavar="NAME=REFERENCE",
            help="a secret, by reference: env:NAME, file:/PATH, module:function",
        ),
    ] = None

    def describe(self, text: str, *, name: str | None = None) -> AbstractContextManager[SinkSpec]:
        """Describe the sink that a text names; see :func:`named_sink`."""
        return named_sink(text, options=self.sink_option or (), secrets=self.sink_secret or (), name=name)
