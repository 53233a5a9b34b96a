"""A connection to one Redis server that never repeats a request on its own, and transactions under WATCH."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry as ClientRetry

from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.redis.packing import Command, Sendable, pack

Reply = Any
Ask = Callable[..., list[Reply]]
"""Sends commands that must not fail to one server, and returns their replies."""
COLLISIONS = Retry(attempts=200, first_pause=0.001, longest_pause=0.015)
"""How a transaction is repeated when other clients change what it watches."""


class Connection:
    """A connection that is opened at its first use, and reopened at the first use after an error.

    :param server: ``host:port``, and the database if it is not 0, for messages.
    :param options: arguments of the client's connections.
    :param password: the password, or a function that is called for each new connection.
    :raises SinkConfigurationError: the client does not know an option.
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
                retry=ClientRetry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except (TypeError, redis.RedisError) as error:
            raise SinkConfigurationError(f"Redis at {server}: {error}") from None

    def exchange(self, commands: Sequence[Sendable]) -> list[Reply]:
        """Send commands together and read their replies.

        :returns: one reply per command. An error of the server is returned, not raised.
        :raises SinkUnavailable: the connection broke. The commands may have taken effect.
        :raises SinkRefused: the server refuses the user or the password.
        """
        self.send(commands)
        return self.receive(len(commands))

    def send(self, commands: Sequence[Sendable]) -> None:
        """Send commands together. The caller then reads their replies."""
        with self._explained():
            self._connection.send_packed_command(pack(commands))

    def receive(self, count: int) -> list[Reply]:
        replies: list[Reply] = []
        with self._explained():
            for _ in range(count):
                try:
                    replies.append(self._connection.read_response())
                except redis.ResponseError as error:
                    replies.append(error)
        return replies

    def receive_all(self, count: int) -> list[Reply]:
        """Read replies of which none may be an error.

        :raises ExportQueueError: one of them is; the connection is closed.
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
            self._connection.disconnect()  # late replies would be taken for those of other commands
            raise

    def ask(self, *command: bytes | str) -> Reply:
        """Send one command and return its reply, which must not be an error."""
        return self.ask_all(command)[0]

    def ask_all(self, *commands: Sendable) -> list[Reply]:
        """Send commands and return their replies, of which none may be an error; see :meth:`receive_all`."""
        self.send(commands)
        return self.receive_all(len(commands))

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        self._connection.disconnect()


class _Collision(Exception):
    """Another client changed a watched key, so that the transaction had no effect."""


def change_watched(
    ask: Ask,
    keys: Sequence[bytes | str],
    reads: Sequence[Command],
    decide: Callable[[Sequence[Reply]], Sequence[Command]],
    complaint: str,
    *,
    hint: str | None = None,
) -> Sequence[Reply]:
    """Read and change keys in one transaction, and repeat it when another client changes them in between.

    :param reads: commands that read the keys.
    :param decide: returns the commands that change them, given the replies to ``reads``; none to change nothing.
    :param complaint: message of the error.
    :returns: the replies to the changes.
    :raises SinkUnavailable: other clients interfered with every attempt.
    """

    def attempt() -> Sequence[Reply]:
        _, *found = ask(("WATCH", *keys), *reads)
        changes: Sequence[Command] = ()
        try:
            changes = decide(found)
        finally:
            if not changes:
                ask(("UNWATCH",))
        if not changes:
            return ()
        *_, done = ask(("MULTI",), *changes, ("EXEC",))
        if done is None:
            raise _Collision
        return list(done)

    try:
        return COLLISIONS.call(attempt, worth_repeating=lambda error: isinstance(error, _Collision))
    except _Collision:
        raise SinkUnavailable(complaint, hint=hint) from None


class _Credentials(CredentialProvider):
    """Finds the password for each new connection."""

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
