"""The servers that a Redis sink writes to: whether they are fit, and how lost data is noticed."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Protocol

from export_queue.core.errors import SinkConfigurationError, SinkLostData, SinkUnavailable
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import ERRORS, code_of, explain
from export_queue.core.sinks.redis.packing import Command

log = logging.getLogger("export_queue.sinks")


SHOWN = "shown"
"""Field that holds the highest fence that a drain has left in the server."""


class Servers(Protocol):
    """One server, or the primaries of a cluster.

    After an error, :meth:`prepare` is called again before anything else, because other servers may have replaced these.
    """

    def prepare(self) -> None:
        """Examine the servers, and agree with all other sinks on the layout of the ranks.

        :raises SinkConfigurationError: a server cannot hold the guarantees, or has its ranks in another layout.
        :raises SinkLostData: a server has lost data.
        """

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        """Send commands that must not fail to the server of a key, and return their replies."""

    def keys(self, name: bytes) -> Mapping[Connection, bytes]:
        """Return, for each server, a key of its own that begins with a name."""

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        """Compare the incarnations and fences of all servers with those in a control record.

        :param readmit: accept the servers as they are.
        :raises SinkLostData: a server has lost data since the last drain.
        """

    def show(self, fence: int) -> Command:
        """Leave a fence in all servers that have no higher one.

        :returns: fields and values of the control record that keep incarnations and fences.
        """

    def write(self, operations: Operations, *, repairs: bool = False) -> ApplyResult:
        """Write operations on distinct records.

        :param repairs: whether to write records of an equal rank and below the floor, too.
        """

    def read(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """Send reading commands, each to the server of a key.

        :returns: the replies. An error about the type of a key is a reply; others are raised.
        """

    def rank_hashes(self, prefix: bytes) -> Sequence[bytes]:
        """Return the names of all hashes of ranks with a prefix."""

    def hashes_of(self, prefix: bytes, ids: Sequence[bytes], keys: Sequence[bytes]) -> Sequence[bytes]:
        """Return the name of the hash that holds the rank of each record, given its id and key."""

    def sweep(self, floor: int) -> int:
        """Remove the tombstones at or below a floor, which is raised already; return their number."""

    def close(self) -> None:
        """Close all connections."""


def without_errors(replies: Sequence[Reply], server: str) -> list[Reply]:
    """Return the replies to reading commands; raise an error unless it is about the type of a key."""
    for reply in replies:
        if isinstance(reply, Exception) and code_of(reply) != "WRONGTYPE":
            raise explain(reply, server) from reply
    return list(replies)


class Incarnations:
    """Incarnations and fences that this sink has seen, by the key of the hash that holds them.

    An incarnation is a random text that the first sink leaves in a server. A server that was emptied, or restarted
    without its data, has none or a new one. A server that came back in an older state, for example after a restart
    without its last writes, has a lower fence. In both cases ranks are missing, so that late deliveries would bring old
    records back.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[bytes, int]] = {}

    def to_text(self) -> str:
        """Return everything seen, for :meth:`expect`."""
        return " ".join(
            f"{key.decode()} {found.decode()} {shown}" for key, (found, shown) in sorted(self._seen.items())
        )

    def expect(self, text: bytes | None) -> None:
        """Treat what :meth:`to_text` returned earlier as seen."""
        words = (text or b"").split()
        for key, found, shown in zip(words[::3], words[1::3], words[2::3], strict=True):
            known, fence = self._seen.get(key, (found, 0))
            self._seen[key] = known, max(fence, int(shown))

    def forget(self) -> None:
        """Accept the servers as they are from now on."""
        self._seen.clear()

    def leave(self, key: bytes) -> Command:
        """Return the command that leaves a new incarnation if there is none."""
        return ("HSETNX", key, "incarnation", secrets.token_hex(8))

    def look(self, key: bytes) -> Command:
        """Return the command whose reply :meth:`check` takes."""
        return ("HMGET", key, "incarnation", SHOWN)

    def check(self, key: bytes, reply: Sequence[bytes | None], *, server: str) -> None:
        """Compare a server's incarnation and fence with those seen before.

        :raises SinkLostData: the incarnation differs, or the fence is lower.
        """
        found, shown = reply[0], int(reply[1] or 0)
        expected, fence = self._seen.setdefault(key, (found or b"", shown))
        if found != expected:
            raise SinkLostData(
                f"Redis at {server} was emptied, or restarted without its data: expected the incarnation"
                f" {expected.decode()} in {key.decode()}, found {(found or b'none').decode()}"
            )
        if shown < fence:
            raise SinkLostData.older(
                f"Redis at {server} is in an older state than it was, as after a restart without its last writes:"
                f" expected the fence {fence} in {key.decode()}, found {shown or 'none'}"
            )
        self._seen[key] = expected, shown

    def note(self, key: bytes, shown: int) -> None:
        """Record that a server holds a fence."""
        known, fence = self._seen[key]
        self._seen[key] = known, max(fence, shown)


def check_server(connection: Connection) -> str:
    """Refuse a server that cannot hold the guarantees.

    :returns: the server's mode, ``standalone`` or ``cluster``.
    """
    facts, name = _facts(connection.ask("INFO")), f"Redis at {connection.server}"
    if facts.get("loading") == "1":  # its settings are not final: it reports no append-only file until then
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
    if mode != "cluster" and facts.get("role", "master") != "master":  # replicas of a cluster name its primaries
        raise SinkUnavailable(f"{name} is a replica", hint="connect to the primary")
    if weakness := _weakness(connection, facts):
        _warn(f"{name} {weakness}; docs/sinks/index.md says what each setting keeps")
    return mode


def version_of(connection: Connection) -> str:
    """Return the server's version."""
    return _facts(connection.ask("INFO", "server")).get("redis_version", "unknown")


def _weakness(connection: Connection, facts: Mapping[str, str]) -> str | None:
    """Return which acknowledged writes a server may lose, as far as its settings can be read."""
    if facts.get("aof_enabled") == "0":
        return "has no append-only file (appendonly no): what came after its last snapshot is lost when it stops"
    (reply,) = connection.exchange([("CONFIG", "GET", "appendfsync")])
    if isinstance(reply, Exception) or not reply:  # not every user may read settings, and not every server has them
        return None
    found = (list(reply.values()) if isinstance(reply, dict) else list(reply))[-1]
    policy = found.decode() if isinstance(found, bytes) else str(found)
    return None if policy == "always" else f"may lose the last moment in a power cut (appendfsync {policy})"


@cache
def _warn(message: str) -> None:
    """Warn once per process: servers are examined again after each error."""
    log.warning("%s", message)


def agree_on_shards(
    servers: Servers, incarnations: Incarnations, *, name: str, number: str, proposed: int, wanted: int | None
) -> int:
    """Agree with all sinks on the layout of the ranks. The first sink decides; later sinks cannot change it.

    :param name: ``host:port``, for messages.
    :param number: number of the layout that these servers need.
    :param proposed: number of hashes that hold the ranks if this sink is the first one.
    :param wanted: number of hashes that the sink requires; None for any.
    :returns: the number agreed.
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
