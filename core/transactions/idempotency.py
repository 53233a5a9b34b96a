"""Idempotency keys: the rules for a key and its result, and the state of its work."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import orjson

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Database, queries

MAX_IDEMPOTENCY_KEY_BYTES = 1024


def check_idempotency_key(key: str) -> None:
    """Refuse a key that not every database can store.

    :raises InvalidArgument: it is no text, empty, too long, or holds a NUL or half a character.
    """
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_IDEMPOTENCY_KEY_BYTES or "\x00" in key:
        # Of what is no text only the type: a number of thousands of digits cannot be shown.
        shown = reprlib.repr(key) if isinstance(key, str) else f"a value of type {type(key).__name__}"
        raise InvalidArgument(
            f"idempotency key: expected text of 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes without NUL, found {shown}"
        )


def as_json(result: Any, key: str) -> str:
    """Write the result of a unit of work as JSON.

    :raises InvalidArgument: a later call, which returns the stored result, would return another value.
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
    """Where a unit of work stands."""

    generation: int
    """How often its idempotency key has been closed, plus one."""
    committed: bool
    """Whether the work has taken effect in this generation."""
    result: Any = None
    """The result that was stored with the commit."""
    previous: Any = None
    """The result of the generation before, which has committed and was closed."""


def idempotency_state(database: Database, idempotency_key: str, *, seconds: float | None = None) -> IdempotencyState:
    """Look an idempotency key up.

    :param seconds: how long the answer is waited for; an hour.
    """
    with database.read(seconds=seconds) as work:
        row = queries.reports.latest_idempotency(work, idempotency_key)
    if row is None:
        return IdempotencyState(1, committed=False)
    result = None if row["result"] is None else orjson.loads(row["result"])
    if row["closed_ms"] is not None:
        return IdempotencyState(int(row["generation"]) + 1, committed=False, previous=result)
    return IdempotencyState(int(row["generation"]), committed=True, result=result)


def committed_result(database: Database, idempotency_key: str, generation: int, *, seconds: float) -> Any:
    """Read the result of a generation that has committed, also if it has been closed since.

    :param seconds: how long the answer is waited for.
    """
    with database.read(seconds=seconds) as work:
        result = queries.reports.idempotency_result(work, idempotency_key, generation)
    return None if result is None else orjson.loads(result)
