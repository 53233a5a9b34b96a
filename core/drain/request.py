"""The parameters of a drain, for this process, for Spark and for Airflow."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

from export_queue.core.drain.transient import DRAIN_RETRY
from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import Owner
from export_queue.core.queue import Range, as_range
from export_queue.core.references import check_sink_name
from export_queue.core.retry import Retry

IfLocked = Literal["wait", "skip", "fail"]
OnError = Literal["dead_letter", "fail"]
Ranges = Sequence[Range | Sequence[int]]

LEASE_SECONDS = 30.0
CHUNK_ROWS = 10_000
CHUNK_BYTES = 16 << 20


class DrainOptions(TypedDict, total=False):
    """The options of a drain besides its queue and its sink; see :class:`DrainRequest`. None means the default."""

    exporter: object | None
    ranges: Ranges | None
    if_locked: IfLocked | None
    lock_timeout: float | None
    time_limit: float | None
    on_error: OnError | None
    max_dead: int | None
    owner: Owner | None
    drain_id: str | None
    lease_seconds: float | None
    retry: Retry | None
    chunk_rows: int | None
    chunk_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """The parameters of one drain, checked when it is created.

    :param queue_id: the queue.
    :param sink_name: name of the sink that the queue is bound to.
    :param exporter: an import path ``"module:name"``, a function of one :class:`Entry`, or an object with ``export``,
        ``open`` and ``close``; None copies key and value. For other processes it must be an import path.
    :param ranges: ranges of whole units as ``[first, end)``; None means all.
    :param if_locked: what to do about ranges that others hold, wholly or partly: ``"wait"`` for them, ``"skip"`` them,
        or ``"fail"`` before anything is done.
    :param lock_timeout: seconds to wait for others; then locks of lower priority, such as compactions', are revoked.
    :param time_limit: seconds after which the drain delivers nothing more and ends with ``DrainTimedOut``; None for no
        limit.
    :param on_error: ``"dead_letter"`` turns rejected entries into dead letters, ``"fail"`` stops at the first.
    :param max_dead: maximum number of dead letters; one more stops the drain.
    :param owner: the task that claims. A new attempt of a task takes over from an older one. By default, a task that no
        other drain shares.
    :param drain_id: name of the drain, under which its report is stored; unique for each attempt.
    :param lease_seconds: how long a dead drain keeps others out.
    :param retry: how often and how long a step is repeated after transient errors.
    :param chunk_rows: maximum number of entries that are read, applied and removed together.
    :param chunk_bytes: approximate maximum size of such a chunk; at most three chunks are in memory.
    :raises InvalidArgument: a value is not allowed.
    """

    queue_id: str
    sink_name: str
    exporter: object | None = None
    ranges: Ranges | None = None
    if_locked: IfLocked = "wait"
    lock_timeout: float = 600.0
    time_limit: float | None = None
    on_error: OnError = "dead_letter"
    max_dead: int = 1000
    owner: Owner = field(default_factory=Owner.unique)
    drain_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    lease_seconds: float = LEASE_SECONDS
    retry: Retry = DRAIN_RETRY
    chunk_rows: int = CHUNK_ROWS
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        check_sink_name(self.sink_name)
        _check_choice("if_locked", self.if_locked, get_args(IfLocked))
        _check_choice("on_error", self.on_error, get_args(OnError))
        if type(self.max_dead) is not int or self.max_dead < 0:
            raise InvalidArgument(f"max_dead: expected a whole number from 0, found {self.max_dead!r}")
        for name in ("chunk_rows", "chunk_bytes"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InvalidArgument(f"{name}: expected a whole number from 1, found {getattr(self, name)!r}")
        if not _is_number(self.lock_timeout) or self.lock_timeout < 0:
            raise InvalidArgument(f"lock_timeout: expected seconds, 0 or more, found {self.lock_timeout!r}")
        if self.time_limit is not None and not (_is_number(self.time_limit) and 0 < self.time_limit < math.inf):
            raise InvalidArgument(f"time_limit: expected more than 0 seconds, found {self.time_limit!r}")
        if not _is_number(self.lease_seconds) or self.lease_seconds <= 0:
            raise InvalidArgument(f"lease_seconds: expected more than 0 seconds, found {self.lease_seconds!r}")
        if not self.drain_id:
            raise InvalidArgument("drain_id: expected a name, found nothing")
        if self.ranges is not None:
            if not isinstance(self.ranges, Iterable):
                raise InvalidArgument(f"ranges: expected pairs of whole numbers, found {self.ranges!r}")
            object.__setattr__(self, "ranges", tuple(map(as_range, self.ranges)))

    @classmethod
    def of(cls, queue_id: str, sink_name: str, options: Mapping[str, Any]) -> Self:
        """Create a request from options.

        :param queue_id: the queue.
        :param sink_name: name of the sink.
        :param options: :class:`DrainOptions`.
        :raises InvalidArgument: an option is unknown, or its value is not allowed.
        """
        _refuse_unknown(options)
        return cls(
            queue_id=queue_id,
            sink_name=sink_name,
            **{name: value for name, value in options.items() if value is not None},
        )

    def another_attempt(self) -> Self:
        """Return the same request as a new attempt of its task, which takes over the leases of an older one."""
        return replace(self, owner=self.owner.submitted())

    def to_json(self) -> str:
        """Return the request as JSON text, for another process.

        :raises InvalidArgument: the exporter is not an import path.
        """
        if self.exporter is not None and not isinstance(self.exporter, str):
            raise InvalidArgument('exporter: expected an import path "module:name", which executors can import too')
        # field by field: asdict would descend into Retry, whose clock and sleep cannot be serialised
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["ranges"] = None if self.ranges is None else [as_range(part).to_json() for part in self.ranges]
        values["owner"] = asdict(self.owner)
        values["retry"] = {name: getattr(self.retry, name) for name in _RETRY_FIELDS}
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote.

        :raises InvalidArgument: the text is not such a request.
        """
        try:
            values = json.loads(text)
            return cls(**values | {"owner": Owner(**values["owner"]), "retry": Retry(**values["retry"])})
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the request of a drain as JSON: {error}") from None


_RETRY_FIELDS = ("attempts", "seconds", "first_pause", "longest_pause")


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = DrainOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidArgument(f"a drain has no option {', '.join(unknown)}; it has: {', '.join(known)}")


def _check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name}: expected one of {', '.join(allowed)}, found {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
