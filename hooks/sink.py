"""The common part of the sink hooks: a connection becomes a description from which Spark tasks build a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from export_queue.core.errors import SinkConfigurationError
from export_queue.hooks.connections import find_connection
from export_queue.hooks.described import Described

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from export_queue.core.sinks import SinkSpec

TEST_SECONDS = 5
"""Time limit for the test of a connection, which runs in Airflow's API server."""


class SinkHook(BaseHook):
    """Describes the sink of a connection.

    :param sink_conn_id: id of the connection.
    """

    kind: ClassVar[str]
    """The kind of sink."""
    conn_types: ClassVar[tuple[str, ...]]
    """The connection types that it supports."""
    example: ClassVar[Mapping[str, Any]]
    """A valid connection, for errors."""
    from_connection: ClassVar[frozenset[str]]
    """Options that only the connection may set, because an operator's arguments are stored and shown."""

    def __init__(self, sink_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sink_conn_id = sink_conn_id

    def describe(self, options: Mapping[str, Any] | None = None) -> Described[SinkSpec]:
        """Describe the sink.

        :param options: options that the connection does not set, such as ``{"key": "customer:$id"}``.
        :raises MissingConnection: Airflow has no such connection.
        :raises SinkConfigurationError: the connection or the options do not describe such a sink.
        """
        from export_queue.core.sinks import SinkSpec

        connection = self._find()
        chosen = dict(options or {})
        if forbidden := sorted(self.from_connection & chosen.keys()):
            raise SinkConfigurationError(
                f"sink_options: {', '.join(forbidden)} belongs in connection {self.sink_conn_id!r}",
                hint="options of a task are stored and shown; connections keep secrets",
            )
        target, secrets = self._target(connection)
        names = {option_name: self._variable(option_name) for option_name in secrets}
        spec = SinkSpec(
            kind=self.kind,
            name=self.sink_conn_id,
            options={**target, **chosen},
            secrets={option_name: f"env:{variable}" for option_name, variable in names.items()},
        )
        return Described(spec, {names[option_name]: value for option_name, value in secrets.items()})

    def get_conn(self) -> Any:
        """Return a client of the target system."""
        raise NotImplementedError

    def test_connection(self) -> tuple[bool, str]:
        """Connect to the target once, within a few seconds."""
        try:
            return True, self._probe()
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"

    def _find(self) -> Connection:
        connection = find_connection(self.sink_conn_id, example=self.example)
        if connection.conn_type not in self.conn_types:
            raise SinkConfigurationError(
                f"connection {self.sink_conn_id!r} has the type {connection.conn_type!r}; "
                f"{type(self).__name__} takes {' or '.join(self.conn_types)}"
            )
        return connection

    def _variable(self, option_name: str) -> str:
        plain = re.sub(r"[^A-Z0-9]+", "_", f"{self.sink_conn_id}_{option_name}".upper())
        if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", self.sink_conn_id):
            return f"XQ_SINK_{plain}"
        # ids such as a-b and a_b, both parts of one composite sink, must not get each other's secrets
        return f"XQ_SINK_{plain}_{self.sink_conn_id.encode().hex().upper()}"

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the options that name the target, and its secrets by option."""
        raise NotImplementedError

    def _probe(self) -> str:
        """Connect to the target, and return a sentence about it."""
        raise NotImplementedError
