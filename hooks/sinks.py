"""Finding the sink that a connection or an operator's arguments name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from export_queue.core.arguments import given, mapping, required_text
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.hooks.connections import find_connection
from export_queue.hooks.described import Described
from export_queue.hooks.elasticsearch import ElasticsearchSinkHook
from export_queue.hooks.opensearch import OpenSearchSinkHook
from export_queue.hooks.redis import RedisSinkHook
from export_queue.hooks.sql import SqlSinkHook

if TYPE_CHECKING:
    from export_queue.core.sinks import SinkSpec
    from export_queue.hooks.sink import SinkHook

_HOOKS: tuple[type[RedisSinkHook] | type[SqlSinkHook] | type[ElasticsearchSinkHook], ...] = (
    RedisSinkHook,
    SqlSinkHook,
    ElasticsearchSinkHook,
    OpenSearchSinkHook,
)


def sink_hook(conn_id: str) -> SinkHook:
    """Return the hook for a connection's type.

    :raises MissingConnection: Airflow has no such connection.
    :raises SinkConfigurationError: no sink has this type.
    """
    connection = find_connection(conn_id, example=RedisSinkHook.example)
    for hook in _HOOKS:
        if connection.conn_type in hook.conn_types:
            return hook(conn_id)
    supported = [name for hook in _HOOKS for name in hook.conn_types]
    raise SinkConfigurationError(
        f"connection {conn_id!r} has the type {connection.conn_type!r}, which leads to no sink; "
        f"supported are {', '.join(supported)}",
        hint="for a sink of your own give sink='module:factory' instead of sink_conn_id",
    )


def resolve_sink(
    *,
    sink_conn_id: str | None,
    sink_options: Mapping[str, Any] | str | None,
    sink: SinkSpec | Mapping[str, Any] | str | None,
) -> Described[SinkSpec]:
    """Describe the sink that an operator's arguments name.

    :param sink_conn_id: id of a connection, whose type determines the sink.
    :param sink_options: options that the connection does not set; a mapping, or JSON text.
    :param sink: instead of a connection: a description, as a value, a mapping or JSON text; or the import path
        ``module:factory`` of the user's own sink, which takes ``sink_options``. A part of a composite sink may be
        ``{"conn_id": …, "options": {…}}``.
    :raises InvalidArgument: the arguments name no sink, or two.
    :raises SinkConfigurationError: the description does not fit the sink.
    """
    found = mapping(sink_options, what="sink_options") or {}
    options = {name: value for name, value in found.items() if given(value) is not None or value == ""}
    if (sink_conn_id is None) == (sink is None):
        raise InvalidArgument("give either sink_conn_id or sink")
    if sink_conn_id is not None:
        return sink_hook(sink_conn_id).describe(options)
    from export_queue.core.sinks import SinkSpec

    if isinstance(sink, str) and not sink.lstrip().startswith("{"):
        return Described(SinkSpec(kind=sink.strip(), options=options))
    if options:
        raise InvalidArgument("sink_options go with sink_conn_id or an import path; this sink describes its own")
    if isinstance(sink, SinkSpec):
        return Described(sink)
    found = mapping(sink, what="sink") or {}
    variables: dict[str, str] = {}
    return Described(SinkSpec.from_dict(_with_connections(found, variables)), variables)


def _with_connections(found: Mapping[Any, Any], variables: dict[str, str]) -> Mapping[str, Any]:
    """Describe the parts of a composite sink that name connections.

    :param variables: receives the values of their secrets.
    """
    options = found.get("options")
    parts = options.get("parts") if isinstance(options, Mapping) else None
    if found.get("kind") != "composite" or not isinstance(parts, (list, tuple)):
        return found
    return {**found, "options": {**found["options"], "parts": [_part(part, variables) for part in parts]}}


def _part(part: Any, variables: dict[str, str]) -> Any:
    if not isinstance(part, Mapping) or "conn_id" not in part:
        return _with_connections(part, variables) if isinstance(part, Mapping) else part
    if unknown := sorted(map(str, part.keys() - {"conn_id", "options"})):
        raise SinkConfigurationError(
            f"a part of a composite sink with conn_id: expected options besides it, found {', '.join(unknown)}",
            hint='the connection says the rest: {"conn_id": "redis_default", "options": {"key": "price:$id"}}',
        )
    described = sink_hook(required_text(part["conn_id"], what="conn_id of a part")).describe(
        mapping(part.get("options"), what=f"options of part {part['conn_id']!r}")
    )
    variables.update(described.variables)
    spec = described.spec
    return {"kind": spec.kind, "options": spec.options, "secrets": spec.secrets, "name": spec.name}
