"""Options of a sink, which come as JSON or from templates, in the types that its constructor names (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from export_queue.core.arguments import decoded
from export_queue.core.errors import SinkConfigurationError

_NAMES: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Sequence: "a list of texts",
    Mapping: "names and values",
}


def read_options(factory: Callable[..., Any], options: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """Return options in their types: a template makes text of a number or a list, and a number of text.

    :param factory: the class of the sink, whose constructor names the types.
    :param options: JSON values.
    :param kind: the sink's, for the error.
    :raises SinkConfigurationError: an option has another type.
    """
    hints = get_type_hints(factory.__init__)
    found = {name: _read(name, value, hints[name], kind) for name, value in options.items()}
    return {name: value for name, value in found.items() if value is not None}


def _read(name: str, value: Any, hint: Any, kind: str) -> Any:
    """Read one option; None is its default."""
    read = decoded(value)
    if read is None and value != "":
        return None
    # A column that is named 12 stays text, and a list of columns is no name.
    read_first = isinstance(read, str | list | dict)
    for one in (read, value) if read_first else (value, read):
        if _fits(one, hint):
            return one
    if type(value) is int and _fits(str(value), hint):
        return str(value)
    raise SinkConfigurationError(f"option {name!r} of sink {kind}: expected {_expected(hint)}, found {value!r:.100}")


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(one, get_args(hint)[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(one, get_args(hint)[1]) for one in value.values())
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is hint  # a bool is no int


def _expected(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        named = [one for one in get_args(hint) if one is not NoneType and get_origin(one) is not Callable]
        return ", or ".join(map(_expected, named))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin is Mapping and get_args(hint)[1] is str:
        return "names and texts"
    return _NAMES[origin or hint]
