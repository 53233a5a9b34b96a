"""The servers that a Redis sink writes to: a single one, or those of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Protocol

from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import ERRORS
from export_queue.core.sinks.redis.incarnation import Incarnations
from export_queue.core.sinks.redis.packing import Command

log = logging.getLogger("export_queue.sinks")


class Servers(Protocol):
    """One server, or the primaries of a cluster."""

    is_known: bool
    """Whether they have been looked at since the last error: after one, others may have taken their place."""

    def prepare(self) -> None:
        """Look at the servers, and agree with all sinks on how the ranks lie there.

        :raises SinkConfigurationError: a server cannot hold the guarantees, or has its ranks in another layout.
        :raises SinkLostData: a server has lost what it had.
        """

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        """Send commands that must not fail to the server of a key, and return their replies."""

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        """Compare incarnations and fences of all servers with those that a control record has noted.

        :param readmit: take the servers as they are.
        :raises SinkLostData: a server has lost what it had since the last drain.
        """

    def show(self, fence: int) -> Command:
        """Leave a fence in all servers, where they have no higher one.

        :returns: the fields of the control record that note incarnations and fences, and their values.
        """

    def write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records."""

    def sweep(self, floor: int) -> int:
        """Remove the tombstones at or below a floor, which has been raised before; return how many went."""

    def wait_for_replicas(self, *, wanted: int, seconds: float) -> None:
        """Wait until replicas of every server have everything that was written up to now.

        :raises SinkUnavailable: there are fewer than wanted.
        """

    def close(self) -> None:
        """Close all connections."""


def check_server(connection: Connection) -> str:
    """Refuse a server that cannot hold the guarantees.

    :returns: the server's mode, ``standalone`` or ``cluster``.
    """
    facts, name = _facts(connection.ask("INFO")), f"Redis at {connection.server}"
    if facts.get("loading") == "1":  # what it says of itself is not true yet: it has no append-only file meanwhile
        begun = datetime.fromtimestamp(int(facts.get("loading_start_time", "0")), UTC)
        raise ERRORS.find("LOADING").error(
            f"{name}: LOADING: it is reading its data from disk, since {begun:%Y-%m-%d %H:%M:%S} UTC"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        raise SinkConfigurationError(
            f"{name} may evict any key (maxmemory-policy {policy}): it would forget records and their ranks",
            hint="set maxmemory-policy to noeviction, or to one that begins with volatile",
        )
    mode = facts.get("redis_mode", "standalone")
    if mode != "cluster" and facts.get("role", "master") != "master":  # a cluster's replica knows the primaries
        raise SinkUnavailable(f"{name} is a replica", hint="connect to the primary")
    if weakness := _weakness(connection, facts):
        _warn(f"{name} {weakness}; docs/sinks/index.md says what each setting keeps")
    return mode


def _weakness(connection: Connection, facts: Mapping[str, str]) -> str | None:
    """Say what a server may lose of what it has acknowledged, as far as it lets its settings be read."""
    if facts.get("aof_enabled") == "0":
        return "has no append-only file (appendonly no): what came after its last snapshot is lost when it stops"
    (reply,) = connection.exchange([("CONFIG", "GET", "appendfsync")])
    if isinstance(reply, Exception) or not reply:  # not everybody may read settings, and some servers have none
        return None
    found = (list(reply.values()) if isinstance(reply, dict) else list(reply))[-1]
    policy = found.decode() if isinstance(found, bytes) else str(found)
    return None if policy == "always" else f"may lose the last moment in a power cut (appendfsync {policy})"


@cache
def _warn(message: str) -> None:
    """Warn once a process: a server is looked at again after each error."""
    log.warning("%s", message)


def agree_on_shards(
    servers: Servers, incarnations: Incarnations, *, name: str, number: str, proposed: int, wanted: int | None
) -> int:
    """Agree with all sinks on the layout of the ranks; the first sink decides, and it never changes.

    :param name: ``host:port``, for messages.
    :param number: of the layout that these servers have.
    :param proposed: over how many hashes the ranks are spread where this sink is the first one.
    :param wanted: over how many they must be spread; None for any number.
    :returns: over how many they are.
    """
    *_, (found, shards), incarnation = servers.ask(
        layout.CONTROL,
        ("HSETNX", layout.CONTROL, "layout", number),
        ("HSETNX", layout.CONTROL, "shards", str(proposed)),
        incarnations.leave(layout.CONTROL),
        ("HMGET", layout.CONTROL, "layout", "shards"),
        incarnations.look(layout.CONTROL),
    )
    incarnations.check(layout.CONTROL, incarnation, server=name)
    if found.decode() != number:
        raise SinkConfigurationError(f"Redis at {name} has ranks in layout {found.decode()}, expected {number}")
    if wanted not in (None, int(shards)):
        raise SinkConfigurationError(
            f"Redis at {name} has its ranks in {int(shards)} shards, the sink asks for {wanted}",
            hint="leave shards out: the number is fixed once a database has ranks",
        )
    return int(shards)


def _facts(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, mark, value in pairs if mark}
