"""One connection to a Redis server that never repeats a request by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.redis.packing import Sendable, pack

Reply = Any
Ask = Callable[..., list[Reply]]
"""Sends commands that must not fail to one server, and returns their replies."""


class Connection:
    """A connection that is opened at its first use, and again at the first use after an error.

    :param server: ``host:port``, and the database if it is not 0, for messages.
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

    def exchange(self, commands: Sequence[Sendable]) -> list[Reply]:
        """Send commands in one go and read their replies.

        :returns: one reply a command; a server's error stands in its place.
        :raises SinkUnavailable: the connection broke; whether the commands took effect is not known.
        :raises SinkRefused: the server refuses user or password.
        """
        self.send(commands)
        return self.receive(len(commands))

    def send(self, commands: Sequence[Sendable]) -> None:
        """Send commands in one go; their replies are to be read by :meth:`receive`."""
        with self._explained():
            self._connection.send_packed_command(pack(commands))

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

    def receive_all(self, count: int) -> list[Reply]:
        """Read the replies to commands of which none may fail.

        :raises ExportQueueError: the server answered one of them with an error; the connection is closed.
        """
        replies = self.receive(count)
        for reply in replies:
            if isinstance(reply, Exception):
                self.close()  # also ends a WATCH or a MULTI
                raise explain(reply, self.server) from reply
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

    def ask_all(self, *commands: Sendable) -> list[Reply]:
        """Send commands of which none may fail, and return their replies; see :meth:`receive_all`."""
        self.send(commands)
        return self.receive_all(len(commands))

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
