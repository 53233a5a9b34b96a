"""One connection to a Redis server that never repeats a request by itself, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import redis
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from export_queue.core.errors import ExportQueueError, SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.sinks.redis.layout import Command

Reply = Any

_LARGE = 1 << 18
"""Bytes above which a command is packed by hand: the C packer grows its buffer too often for it."""
_PIECE = 1 << 16
"""Bytes that are sent at once of a large command: the server reads the first ones while others are packed."""
_pack_whole = cast(Callable[[Command], bytes], pack_command)

_CODES: Mapping[str, tuple[type[ExportQueueError], str]] = {
    "AUTH": (SinkRefused, "check user and password of the sink's connection"),
    "NOAUTH": (SinkRefused, "give the sink's connection a password"),
    "NOPERM": (SinkRefused, "grant the user the sink's commands and keys, those that begin with xq: too"),
    "OOM": (SinkRefused, "the server's memory is full: raise maxmemory or free some; entries wait in the queue"),
    "MISCONF": (SinkRefused, "the server cannot save to its disk and takes no writes until it can"),
    "READONLY": (SinkUnavailable, "the server is a replica: after a fail-over, connect to the new primary"),
    "LOADING": (SinkUnavailable, "the server is reading its data from disk; try again"),
    "BUSY": (SinkUnavailable, "the server is busy with a script; try again"),
    "NOREPLICAS": (SinkUnavailable, "too few replicas are connected; try again"),
    "MASTERDOWN": (SinkUnavailable, "the replica has lost its primary; try again"),
    "TRYAGAIN": (SinkUnavailable, "slots are being moved; try again"),
    "CLUSTERDOWN": (SinkUnavailable, "the cluster is not complete; try again"),
    "MOVED": (SinkConfigurationError, "this sink writes to a single server, not to a cluster"),
    "ASK": (SinkConfigurationError, "this sink writes to a single server, not to a cluster"),
    "CROSSSLOT": (SinkConfigurationError, "this sink writes to a single server, not to a cluster"),
}
"""What an error code means, and what to do; any other is a refusal."""

_CLASSES: Mapping[type[Exception], str] = {
    redis.AuthenticationError: "AUTH",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.AskError: "ASK",  # before MovedError, which is its parent
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
}
"""The client takes these codes off the message; all others are its first word."""


def code_of(error: Exception) -> str:
    """Return the code of a server's error: ``OOM``, ``WRONGTYPE``, …"""
    for kind, code in _CLASSES.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


def explain(error: Exception, server: str) -> ExportQueueError:
    """Turn an error of the client into one of ours.

    :param error: what the client raised or the server answered.
    :param server: ``host:port``.
    """
    code = code_of(error)
    if code in _CODES:
        kind, hint = _CODES[code]
        return kind(f"Redis at {server}: {code}: {error}", hint=hint)
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return SinkUnavailable(f"Redis at {server} does not answer: {error}")
    return SinkRefused(f"Redis at {server} refuses: {error}")


def pack(commands: Sequence[Command]) -> list[bytes]:
    """Write commands in Redis's protocol.

    :returns: what to send, one piece after the other; one piece if it is not much.
    """
    pieces: list[bytes] = []
    small: list[bytes] = []
    for command in commands:
        if sum(map(len, command)) < _LARGE:
            small.append(_pack_whole(command))
            continue
        small.append(b"*%d\r\n" % len(command))
        size = 0
        for part in command:
            raw = part.encode() if isinstance(part, str) else part
            small += (b"$%d\r\n" % len(raw), raw, b"\r\n")
            size += len(raw)
            if size > _PIECE:
                pieces.append(b"".join(small))
                small, size = [], 0
    pieces.append(b"".join(small))
    return pieces


class Connection:
    """A connection that is opened at its first use, and again at the first use after an error.

    :param server: ``host:port``, for messages.
    :param options: arguments of the client's connections.
    :param username: the user; None for the default one.
    :param password: the password, or what finds it; asked for at each new connection.
    :raises SinkConfigurationError: the client knows no such option.
    """

    def __init__(
        self,
        *,
        server: str,
        options: Mapping[str, Any],
        ssl: bool,
        username: str | None,
        password: str | Callable[[], str] | None,
    ) -> None:
        self.server = server
        provider = None if username is None and password is None else _Credentials(username, password)
        kind = redis.SSLConnection if ssl else redis.Connection
        try:
            self._connection: Any = kind(
                **options,
                credential_provider=provider,
                # RESP2: no push messages between replies. No retry: what was lost may have been applied.
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except (TypeError, redis.RedisError) as error:
            raise SinkConfigurationError(f"Redis at {server}: {error}") from None

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one go and read their replies.

        :returns: one reply a command; a server's error stands in its place.
        :raises SinkUnavailable: the connection broke; whether the commands took effect is not known.
        :raises SinkRefused: the server does not let us in.
        """
        connection = self._connection
        replies: list[Reply] = []
        try:
            connection.send_packed_command(pack(commands))
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise explain(error, self.server) from error
        except BaseException:
            connection.disconnect()  # replies may be on their way: nobody may take them for others
            raise
        return replies

    def ask(self, *command: bytes | str) -> Reply:
        """Send one command and return its reply.

        :raises ExportQueueError: the server answered with an error.
        """
        (reply,) = self.exchange([command])
        if isinstance(reply, Exception):
            raise explain(reply, self.server) from reply
        return reply

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        self._connection.disconnect()


class _Credentials(CredentialProvider):
    """Looks the password up at each new connection."""

    def __init__(self, username: str | None, password: str | Callable[[], str] | None) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password() if callable(self._password) else self._password
        if self._username:
            return self._username, password or ""
        return (password or "",)

    def __repr__(self) -> str:
        return "<credentials>"
