"""Idempotency keys, their results, and the state of the work that they identify."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import orjson

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Database, queries

MAX_IDEMPOTENCY_KEY_BYTES = 1024


def check_idempotency_key(key: str) -> None:
    """Refuse a key that some databases cannot store: not text, empty, too long, with NUL or a lone surrogate."""
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_IDEMPOTENCY_KEY_BYTES or "\x00" in key:
        # Other types are not shown: the text of an int with thousands of digits cannot be computed.
        shown = reprlib.repr(key) if isinstance(key, str) else f"a value of type {type(key).__name__}"
        raise InvalidArgument(
            f"idempotency key: expected text of 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes without NUL, found {shown}"
        )


def as_json(result: Any, key: str) -> str:
    """Return the result of a unit of work as JSON text.

    :raises InvalidArgument: a later call would return another value than this one.
    """
    try:
        text = orjson.dumps(result)
        back = orjson.loads(text)
    except (TypeError, ValueError) as error:
        raise _no_json(key, str(error)) from error
    if back != result:
        raise _no_json(key, f"{reprlib.repr(result)} would come back as {reprlib.repr(back)}")
    return text.decode()


def _no_json(key: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"idempotency key {key!r}: its result must be a JSON value, which is stored with the commit; {reason}",
        hint="return None, booleans, numbers, text, or lists and dicts (with keys of text) of these",
    )


@dataclass(frozen=True, slots=True)
class IdempotencyState:
    """The state of a unit of work."""

    generation: int
    """1, plus the number of times that the idempotency key has been closed."""
    committed: bool
    """Whether the work has taken effect in this generation."""
    result: Any = None
    """The result that was stored with the commit."""
    previous: Any = None
    """The result of the previous generation, which committed and was then closed."""
    id: int | None = None
    """The sequence of what the work added; None if it has not taken effect."""


def idempotency_state(database: Database, idempotency_key: str, *, seconds: float | None = None) -> IdempotencyState:
    """Return whether a unit of work has taken effect, and its result.

    :param seconds: how long to wait for the answer; one hour by default.
    """
    with database.read(seconds=seconds) as work:
        row = queries.reports.latest_idempotency(work, idempotency_key)
    if row is None:
        return IdempotencyState(1, committed=False)
    result = None if row["result"] is None else orjson.loads(row["result"])
    if row["closed_ms"] is not None:
        return IdempotencyState(int(row["generation"]) + 1, committed=False, previous=result)
    return IdempotencyState(int(row["generation"]), committed=True, result=result, id=int(row["id"]))


def committed_result(database: Database, idempotency_key: str, generation: int, *, seconds: float) -> Any:
    """Return the result of a generation that has committed, even if it has been closed since."""
    with database.read(seconds=seconds) as work:
        result = queries.reports.idempotency_result(work, idempotency_key, generation)
    return None if result is None else orjson.loads(result)
