"""The parameters of a drain, for this process, for Spark and for Airflow."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from typing import Annotated, Any, Literal, Self, TypedDict, get_args, get_type_hints

from export_queue.core.arguments import choice, seconds, whole_number
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


def _ranges(value: object, *, what: str) -> tuple[Range, ...]:
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"{what}: expected pairs of whole numbers, found {value!r}")
    return tuple(map(as_range, value))


_if_locked = partial(choice, allowed=get_args(IfLocked))
_on_error = partial(choice, allowed=get_args(OnError))
_from_zero = partial(seconds, may_be_zero=True)
_from_one = partial(whole_number, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """The parameters of one drain, checked when it is created. Each option has its help and its check next to it.

    :param queue_id: the queue.
    :param sink_name: name of the sink that the queue is bound to.
    :param exporter: in this process also a function of one :class:`Entry`, or an object with ``export``, ``open`` and
        ``close``.
    :raises InvalidArgument: a value is not allowed.
    """

    queue_id: str
    sink_name: str
    exporter: Annotated[object | None, "import path; by default the stored one, else one record per entry"] = None
    ranges: Annotated[Ranges | None, "only these ranges of buckets, without their ends; whole units", _ranges] = None
    if_locked: Annotated[IfLocked, "if others hold ranges: wait, skip them, or fail at the start", _if_locked] = "wait"
    lock_timeout: Annotated[float, "seconds to wait for others; then compactions lose their locks", _from_zero] = 600
    time_limit: Annotated[float | None, "seconds after which to stop; another drain can do the rest", seconds] = None
    on_error: Annotated[OnError, "if entries are refused: dead_letter, or fail at the first", _on_error] = "dead_letter"
    max_dead: Annotated[int, "maximum number of dead letters; one more stops the drain", whole_number] = 1000
    owner: Annotated[Owner, "the task; a new attempt takes over from older ones"] = field(default_factory=Owner.unique)
    drain_id: Annotated[str, "name of the report, unique for each attempt"] = field(
        default_factory=lambda: uuid.uuid4().hex
    )
    lease_seconds: Annotated[float, "seconds for which a dead drain keeps others out", seconds] = LEASE_SECONDS
    retry: Annotated[Retry, "how often and how long a step is repeated after transient errors"] = DRAIN_RETRY
    chunk_rows: Annotated[int, "maximum number of entries that are read and written together", _from_one] = CHUNK_ROWS
    chunk_bytes: Annotated[int, "about the maximum size of a chunk; three are in memory", _from_one] = CHUNK_BYTES

    def __post_init__(self) -> None:
        check_sink_name(self.sink_name)
        if not self.drain_id:
            raise InvalidArgument("drain_id: expected a name, found nothing")
        for name, (_, _, *checks) in described_options().items():
            value = getattr(self, name)
            for check in checks if value is not None else ():
                object.__setattr__(self, name, check(value, what=name))

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


TASK_OPTIONS = ("exporter", "ranges", "if_locked", "lock_timeout", "time_limit", "on_error", "max_dead")
"""The options of command line and operators. The others are for programs."""
_RETRY_FIELDS = ("attempts", "seconds", "first_pause", "longest_pause")


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = DrainOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidArgument(f"a drain has no option {', '.join(unknown)}; it has: {', '.join(known)}")


@cache
def described_options() -> dict[str, tuple[Any, ...]]:
    """Return type, help and check of each option."""
    hints = get_type_hints(DrainRequest, include_extras=True)
    return {name: (hints[name].__origin__, *hints[name].__metadata__) for name in DrainOptions.__annotations__}
