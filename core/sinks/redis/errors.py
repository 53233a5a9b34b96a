"""What errors of Redis mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import redis

from export_queue.core.errors import SinkConfigurationError, SinkError, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate

Result = TypeVar("Result")

NO_ANSWER = "no answer"
COLLISIONS = Retry(attempts=200, first_pause=0.001, longest_pause=0.015)
"""How a transaction is repeated that other clients disturb."""


class Collision(Exception):
    """Another client changed a watched key: the transaction did not take effect, and may be repeated."""


def until_undisturbed(step: Callable[[], Result], complaint: str, *, hint: str | None = None) -> Result:
    """Repeat a transaction until no other client disturbs it.

    :param step: raises :class:`Collision` where the transaction did not take effect.
    :param complaint: the message where all attempts were disturbed.
    :raises SinkUnavailable: they were.
    """
    try:
        return COLLISIONS.call(step, worth_repeating=lambda error: isinstance(error, Collision))
    except Collision:
        raise SinkUnavailable(complaint, hint=hint) from None


ERRORS = ErrorTable(
    "Redis",
    [
        ErrorRow(NO_ANSWER, Fate.LATER, "the server is not there or too slow, or the connection broke"),
        ErrorRow("LOADING", Fate.LATER, "the server is reading its data from disk; try again"),
        ErrorRow("BUSY", Fate.LATER, "the server is busy with a script; try again"),
        ErrorRow("READONLY", Fate.LATER, "the server is a replica, which takes no writes: connect to the primary"),
        ErrorRow("MASTERDOWN", Fate.LATER, "the replica has lost its primary; try again"),
        ErrorRow("NOREPLICAS", Fate.LATER, "too few replicas are connected; try again"),
        ErrorRow("TRYAGAIN", Fate.LATER, "a slot is being moved to another node; try again"),
        ErrorRow("MOVED", Fate.LATER, "another node serves the slot now: the sink asks again which one"),
        ErrorRow("ASK", Fate.LATER, "a slot is being moved to another node; try again"),
        ErrorRow("CLUSTERDOWN", Fate.LATER, "the cluster is not complete; try again"),
        ErrorRow("NOSCRIPT", Fate.LATER, "the server has lost its scripts just now; try again"),
        ErrorRow(
            "OOM", Fate.LATER, "the server's memory is full: raise maxmemory or free some; entries wait in the queue"
        ),
        ErrorRow(
            "MISCONF",
            Fate.LATER,
            "the server cannot save: make room on its disk, see its log; entries wait in the queue",
        ),
        ErrorRow("AUTH", Fate.REFUSED, "check user and password of the sink's connection"),
        ErrorRow("NOAUTH", Fate.REFUSED, "give the sink's connection a password"),
        ErrorRow("NOPERM", Fate.REFUSED, "grant the user the sink's commands and keys, those that begin with xq: too"),
        ErrorRow("*", Fate.REFUSED, "the server's own words say what it did not like"),
    ],
)

_CLASSES: Mapping[type[Exception], str] = {
    redis.AuthenticationError: "AUTH",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MovedError: "MOVED",  # before AskError, which is its parent
    redis.exceptions.AskError: "ASK",
    redis.exceptions.NoScriptError: "NOSCRIPT",
}
"""The client takes these codes off the message; all others are its first word."""


def code_of(error: Exception) -> str:
    """Return the code of a server's error: ``OOM``, ``WRONGTYPE``, …"""
    for kind, code in _CLASSES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return NO_ANSWER
    return str(error).partition(" ")[0]


def explain(error: Exception, server: str) -> SinkError | SinkConfigurationError:
    """Turn an error of the client into one of ours.

    :param error: what the client raised or the server answered.
    :param server: ``host:port``.
    """
    code = code_of(error)
    row = ERRORS.find(code)
    if code == NO_ANSWER:
        return row.error(f"Redis at {server} does not answer: {error}")
    if row.code == code:
        return row.error(f"Redis at {server}: {code}: {error}")
    return row.error(f"Redis at {server} refuses: {error}")
