"""The parameters of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict

from export_queue.core.arguments import seconds
from export_queue.core.drain import LEASE_SECONDS
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import check_sink_name
from export_queue.core.sources import STATE, AnySource, find_source, name_of_source
from export_queue.core.state import MirrorOptions
from export_queue.core.verify.named_records import RecordFunction, find_function


class VerifyOptions(TypedDict, total=False):
    """The options of a comparison besides its queue and its sink; see :class:`VerifyRequest`."""

    source: AnySource
    records: RecordFunction | None
    exporter: object | None
    collections: Sequence[str]
    rounds: int
    repair: bool
    max_deletes: float
    lock_timeout: float
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """The parameters of one comparison, checked when it is created.

    :param queue_id: the queue, or the subscription that drains into the sink.
    :param sink_name: name of the sink that the queue is bound to.
    :param source: where the full content of the queue comes from; see :func:`find_source`.
    :param records: instead of a source: a function that yields the records which the sink should have, as
        :class:`~export_queue.Put`, or its import path ``module:name``. For exporters that name records by value.
    :param exporter: the exporter of the drains; None for the stored one.
    :param collections: collections of the sink that are read besides those of the expected records. An exporter of your
        own may have written to others.
    :param rounds: how often records that keep changing are checked again before they count as younger.
    :param repair: whether to write the records that differ again, with the sequences of their latest entries, and to
        compare once more.
    :param max_deletes: the largest part of the compared records that a repair may delete because no entry names them,
        from 0.0 to 1.0, or as a whole number a number of records. If there are more, none is deleted.
    :param lock_timeout: seconds that a repair waits for drains; after that compactions lose their locks, and it fails
        if others hold any.
    :param lease_seconds: seconds for which a repair that was killed keeps drains out.
    :raises InvalidArgument: a value is not allowed.
    """

    queue_id: str
    sink_name: str
    source: AnySource = STATE
    records: RecordFunction | None = None
    exporter: object | None = None
    collections: Sequence[str] = ()
    rounds: int = 6
    repair: bool = False
    max_deletes: float = 0.2
    lock_timeout: float = 600.0
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        check_sink_name(self.sink_name)
        if isinstance(self.collections, str) or not all(isinstance(one, str) and one for one in self.collections):
            raise InvalidArgument(f"collections: expected a list of names, found {self.collections!r}")
        if not isinstance(self.repair, bool):
            raise InvalidArgument(f"repair: expected true or false, found {self.repair!r}")
        MirrorOptions(max_deletes=self.max_deletes)  # checks it
        seconds(self.lock_timeout, what="lock_timeout", may_be_zero=True)
        seconds(self.lease_seconds, what="lease_seconds")
        if type(self.rounds) is not int or self.rounds < 1:
            raise InvalidArgument(f"rounds: expected a whole number from 1, found {self.rounds!r}")
        find_source(self.source)
        if self.records is not None:
            find_function(self.records)
            if self.source != STATE:
                raise InvalidArgument("expected either a source or records, found both")

    @classmethod
    def of(cls, queue_id: str, sink_name: str, options: Mapping[str, Any]) -> Self:
        """Create a request from options.

        :param options: :class:`VerifyOptions`.
        :raises InvalidArgument: an option is unknown or missing, or its value is not allowed.
        """
        known = VerifyOptions.__annotations__
        if unknown := [name for name in options if name not in known]:
            raise InvalidArgument(f"verify has no option {', '.join(unknown)}; it has: {', '.join(known)}")
        return cls(queue_id=queue_id, sink_name=sink_name, **options)

    @property
    def source_name(self) -> str:
        """The source as text, for the report."""
        return name_of_source(self.source if self.records is None else self.records)
