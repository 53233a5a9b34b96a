"""The options that commands share, and groups of them. One parameter of a command may stand for several options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from export_queue.core.cli.console import app, show
from export_queue.core.cli.naming import named_sink, open_named_store
from export_queue.core.client import Store
from export_queue.core.drain import TASK_OPTIONS, DrainRequest, described_options
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import has_password
from export_queue.core.sinks import SinkSpec

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


def refuse_passwords(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Refuse URLs that contain a password, unless they come from the environment; the callback of an option.

    :raises InvalidArgument: a URL contains a password; the message does not repeat it.
    """
    source = context.get_parameter_source(parameter.name or "")
    given = value if isinstance(value, list | tuple) else [value]
    if "" in given:
        raise typer.BadParameter("expected a name, found nothing")
    if source is not None and source.name == "ENVIRONMENT":
        return value
    if any(isinstance(text, str) and has_password(text) for text in given):
        raise InvalidArgument(
            f"{parameter.opts[0]}: the URL contains a password, and every user of this machine can read a command line",
            hint="put the URL into an environment variable and pass env:NAME; or leave the password out and pass "
            "--password env:NAME for a store, --sink-secret password=env:NAME for a sink",
        )
    return value


SINK_NAMES = "URL, SINK.json, module:factory, env:NAME or the id of an Airflow connection"

QueueId = Annotated[str, typer.Argument(metavar="QUEUE", help="id of the queue")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Who = Annotated[str | None, typer.Option(help="name to record; by default user and host")]
Complete = Annotated[
    bool, typer.Option("--complete", help="promise that the sink lacks nothing; the promise is recorded")
]
_SINK = typer.Option("--sink", envvar="EXPORT_QUEUE_SINK", callback=refuse_passwords, help=f"the sink: {SINK_NAMES}")
SinkText = Annotated[str, _SINK]
SinkTextIfAny = Annotated[str | None, _SINK]
SinkName = Annotated[
    str | None, typer.Option("--sink-name", help="name to which the queue is bound; by default the sink's own name")
]


def command(name: str | None = None, *, of: typer.Typer = app) -> Callable[[AnyCommand], AnyCommand]:
    """Add a function to a program as a command.

    * A parameter whose type is a dataclass becomes one option for each field; the function receives the object.
    * ``**options`` become the options of a drain.
    * A parameter of type :class:`Store` becomes the options that name a store; the function receives the open store.
    * What the function returns or yields is printed by :func:`show`; such a command has the option ``--json``.

    :param name: name of the command; by default the function's.
    :param of: the program.
    """

    def added(function: AnyCommand) -> AnyCommand:
        types = get_type_hints(function, include_extras=True)
        shows = types.pop("return") is not NoneType
        groups: dict[str, Any] = {
            parameter: StoreOptions if kind is Store else kind
            for parameter, kind in types.items()
            if kind is Store or is_dataclass(kind)
        }
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                parameters += _drain_options()
            elif parameter.name in groups:
                parameters += _options_of(groups[parameter.name])
            else:
                parameters.append(parameter.replace(annotation=types[parameter.name]))
        if shows and "as_json" not in types:
            parameters.append(_option("as_json", AsJson, default=False))

        def run(**values: Any) -> None:
            as_json = values["as_json"] if "as_json" in types else values.pop("as_json", False)
            with ExitStack() as stack:
                for parameter, group in groups.items():
                    options = group(**{one.name: values.pop(one.name) for one in fields(group)})
                    values[parameter] = stack.enter_context(options.open()) if types[parameter] is Store else options
                found = function(**values)
                for result in found if isinstance(found, Iterator) else [found] if shows else ():
                    show(result, as_json=as_json)

        named: Any = run
        named.__name__, named.__doc__ = function.__name__, function.__doc__
        # Keyword-only, so that an option with a default may precede one without.
        in_words = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        named.__signature__ = inspect.Signature(in_words)
        of.command(name)(named)
        return function

    return added


def _option(name: str, annotation: Any, *, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    empty = inspect.Parameter.empty
    return [
        _option(one.name, types[one.name], default=empty if one.default is MISSING else one.default)
        for one in fields(group)
    ]


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(map(str.isdecimal, parts)) or int(parts[0]) >= int(parts[1]):
        raise typer.BadParameter(
            f"expected two rising numbers such as 0:101, optionally with a layout as in 0:101:2, found {text!r}",
            param_hint="--range",
        )
    return list(map(int, parts))


_FORMS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "exporter": (str, {"metavar": "MODULE:NAME"}),
    "ranges": (list[Any], {"metavar": "FIRST:END[:LAYOUT]", "parser": _range}),
}
"""Type and form on the command line, where they differ from a program's."""


def _drain_options() -> Iterator[inspect.Parameter]:
    for name in TASK_OPTIONS:
        kind, said, *_ = described_options()[name]
        default = DrainRequest.__dataclass_fields__[name].default
        kind, form = _FORMS.get(name, (kind, {} if isinstance(default, str) else {"min": 0}))
        flag = "--range" if name == "ranges" else "--" + name.replace("_", "-")
        said = said if default is None else f"{said}; by default {default}"
        yield _option(name, Annotated[kind | None, typer.Option(flag, help=said, **form)], default=None)


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
        """Open the store; a context that closes it."""
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
            help="an option that the sink's name does not set; the value is JSON, or text",
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
        """Describe the sink that a text names, as :func:`named_sink` does."""
        return named_sink(text, options=self.sink_option or (), secrets=self.sink_secret or (), name=name)


def one_or_several(columns: list[str] | None) -> str | list[str] | None:
    """Return the values of a repeated option as Python's functions take columns: one, several, or None."""
    if not columns:
        return None
    return columns[0] if len(columns) == 1 else columns
