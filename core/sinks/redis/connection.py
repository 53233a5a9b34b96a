"""One connection to a Redis server that never repeats a request by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import redis
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.redis.layout import Command

Reply = Any
Ask = Callable[..., list[Reply]]
"""Sends commands that must not fail to one server, and returns their replies."""

_MANY = 64
"""Parts from which a command is packed here: the C packer takes twice the time for it."""
_HEADS = [b"$%d\r\n" % length for length in range(4096)]
"""The head of a part, by the part's length."""
_PIECE = 1 << 16
"""Bytes that are sent at once, about: in blocks of memory that are used again and again. To fill a new large one costs
several times as much, and the server reads the first piece while others are sent."""
_pack_whole = cast(Callable[[Command], bytes], pack_command)


def pack(commands: Sequence[Command]) -> list[bytes]:
    """Write commands in Redis's protocol.

    :returns: the pieces to send, in their order; one piece if the commands are small.
    """
    pieces: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for command in commands:
        if len(command) < _MANY and sum(map(len, command)) < _PIECE:
            packed = [_pack_whole(command)]
            length = len(packed[0])
        else:
            packed, length = _pack_many(command)
        small += packed
        size += length
        if size > _PIECE:
            pieces += _joined(small, size)
            small, size = [], 0
    if size:
        pieces += _joined(small, size)
    return pieces


def _joined(parts: Sequence[bytes], size: int) -> list[bytes]:
    """Join parts to pieces of about the size of one."""
    step = len(parts) * _PIECE // size + 1
    return [b"".join(parts[start : start + step]) for start in range(0, len(parts), step)]


def _pack_many(command: Command) -> tuple[list[bytes], int]:
    """Pack a command of many or large parts; returns the pieces to join, and about how many bytes these are."""
    verb, *others = command
    # as a rule only the verb is text; to look at each of thousands of parts would cost as much as to pack them
    rest = [_raw(part) for part in others] if str in set(map(type, others)) else cast(list[bytes], others)
    parts = [_raw(verb), *rest]
    packed = [b"\r\n"] * (3 * len(parts) + 1)
    packed[0] = b"*%d\r\n" % len(parts)
    lengths = list(map(len, parts))
    packed[1::3] = [_HEADS[length] if length < 4096 else b"$%d\r\n" % length for length in lengths]
    packed[2::3] = parts
    return packed, sum(lengths) + 8 * len(parts)


def _raw(part: bytes | str) -> bytes:
    return part.encode() if isinstance(part, str) else part


class Connection:
    """A connection that is opened at its first use, and again at the first use after an error.

    :param server: ``host:port``, for messages.
    :param options: arguments of the client's connections.
    :param username: the user; None for the default one.
    :param password: the password, or a function that finds it, called at each new connection.
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
                # RESP2: no push messages between replies. No retry: a lost request may have been applied.
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except (TypeError, redis.RedisError) as error:
            raise SinkConfigurationError(f"Redis at {server}: {error}") from None

    def exchange(
        self,
        commands: Sequence[Command],
        *,
        packed: Sequence[bytes] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Reply]:
        """Send commands in one go and read their replies.

        :param packed: the commands, where they were packed before.
        :param meanwhile: called while the server is at work on them.
        :returns: one reply a command; a server's error stands in its place.
        :raises SinkUnavailable: the connection broke; whether the commands took effect is not known.
        :raises SinkRefused: the server refuses user or password.
        """
        self.send(commands, packed)
        if meanwhile is not None:
            with self._explained():
                meanwhile()
        return self.receive(len(commands))

    def send(self, commands: Sequence[Command], packed: Sequence[bytes] | None = None) -> None:
        """Send commands in one go; their replies are to be read by :meth:`receive`."""
        with self._explained():
            self._connection.send_packed_command(pack(commands) if packed is None else packed)

    def receive(self, count: int) -> list[Reply]:
        """Read the replies to commands that were sent."""
        replies: list[Reply] = []
        with self._explained():
            for _ in range(count):
                try:
                    replies.append(self._connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
        return replies

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            self._connection.disconnect()
            raise explain(error, self.server) from error
        except BaseException:
            self._connection.disconnect()  # replies may be on their way, which would be taken for those of others
            raise

    def ask(self, *command: bytes | str) -> Reply:
        """Send one command and return its reply.

        :raises ExportQueueError: the server answered with an error.
        """
        (reply,) = self.exchange([command])
        if isinstance(reply, Exception):
            raise explain(reply, self.server) from reply
        return reply

    def ask_all(self, *commands: Command, **how: Any) -> list[Reply]:
        """Send commands of which none may fail, and return their replies.

        :param how: further arguments of :meth:`exchange`.
        :raises ExportQueueError: the server answered one of them with an error; the connection is closed.
        """
        replies = self.exchange(commands, **how)
        for reply in replies:
            if isinstance(reply, Exception):
                self.close()  # also ends a WATCH or a MULTI
                raise explain(reply, self.server) from reply
        return replies

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
