"""The meaning of Redis's errors."""

from __future__ import annotations

from collections.abc import Mapping

import redis

from export_queue.core.errors import SinkConfigurationError, SinkError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate

NO_ANSWER = "no answer"
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
"""Errors from whose messages the client removes the code. Otherwise the code is the first word of the message."""


def code_of(error: Exception) -> str:
    """Return the code of an error, such as ``OOM`` or ``WRONGTYPE``."""
    for kind, code in _CLASSES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return NO_ANSWER
    return str(error).partition(" ")[0]


def explain(error: Exception, server: str) -> SinkError | SinkConfigurationError:
    """Turn an error that the client raised or the server returned into one of this library."""
    code = code_of(error)
    row = ERRORS.find(code)
    if code == NO_ANSWER:
        return row.error(f"Redis at {server} does not answer: {error}")
    if row.code == code:
        return row.error(f"Redis at {server}: {code}: {error}")
    return row.error(f"Redis at {server} refuses: {error}")
