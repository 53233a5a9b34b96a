"""The queues that the rows of a load are added to, looked up before the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from export_queue.core.drain import Problem
from export_queue.core.errors import InvalidArgument, UnknownQueue
from export_queue.core.queue import Queue, find_queue, list_queues, queue_of
from export_queue.core.store import Database, added_to_subscription

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from export_queue.core.spark.columns import Columns
    from export_queue.core.transactions import OpenTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The queue and the columns that the user names.

    :param queue: id of the queue of all rows; or else
    :param queue_column: column that names the queue of each row.
    :param key: column with keys.
    :param value: column with values.
    :param latest_by: column that decides between rows with the same key: the highest value counts.
    :raises InvalidArgument: both queue and queue_column are given, or neither.
    """

    queue: str | None = None
    queue_column: str | None = None
    key: str = "key"
    value: str = "value"
    latest_by: str | None = None

    def __post_init__(self) -> None:
        if (self.queue is None) == (self.queue_column is None):
            found = "none" if self.queue is None else "both"
            raise InvalidArgument(f"expected either queue or queue_column, found {found} of them")

    @property
    def names(self) -> list[str] | None:
        """The only queues that rows may name; None if a column names them."""
        return None if self.queue is None else [self.queue]

    @property
    def columns(self) -> Columns:
        """The columns of the DataFrame that entries are made of."""
        from export_queue.core.spark.columns import Columns

        return Columns(key=self.key, value=self.value, queue=self.queue_column, latest_by=self.latest_by)

    def find(self, database: Database, schema: StructType, *, bulk: bool) -> Targets:
        """Find the queues, and check that they accept the frame's columns.

        :param bulk: whether the rows are added in files, whose keys a commit cannot check one by one.
        :raises UnknownQueue: the queue does not exist.
        :raises InvalidArgument: the queue does not accept these columns, or no bulk loads.
        """
        queues, refused = self.queues(database, bulk=bulk)
        refused |= self.columns.misfits(schema, queues)
        if queues and len(refused) == len(queues):
            raise next(iter(refused.values()))
        return Targets(queues, {name: Problem.of(error) for name, error in refused.items()})

    def queues(self, database: Database, *, bulk: bool) -> tuple[dict[str, Queue], dict[str, InvalidArgument]]:
        """Find the queues that rows may name, and why some of them refuse the load; this needs no PySpark.

        :param bulk: whether the rows are added in files, whose keys a commit cannot check one by one.
        :raises UnknownQueue: the queue does not exist.
        """
        with database.read() as work:
            found = list_queues(work) if self.queue is None else [find_queue(work, self.queue)]
        if self.queue is not None and found[0].parent is not None:
            raise added_to_subscription(self.queue)
        queues = {queue.id: queue for queue in found if queue.parent is None}
        return queues, {queue.id: _checks_keys(queue) for queue in queues.values() if bulk and queue.exclusive}


def _checks_keys(queue: Queue) -> InvalidArgument:
    return InvalidArgument(
        f"queue {queue.id!r} is exclusive: a commit compares each key that it adds, which a bulk load cannot do",
        hint="add the rows with transaction=False, or alter the queue: export-queue alter QUEUE --no-exclusive",
    )


@dataclass(frozen=True, slots=True)
class Targets:
    """The queues of a load, as its tasks receive them.

    :param queues: those that rows may name, by id.
    :param refused: the reason why some of them do not accept these rows, by id.
    """

    queues: Mapping[str, Queue]
    refused: Mapping[str, Problem] = field(default_factory=dict)

    def laid_out_for(self, database: Database, transaction: int) -> Targets:
        """Return the queues in the layouts in which a long transaction adds to them.

        :param transaction: its id. Queues that were read before it began may have an older layout.
        """
        with database.read() as work:
            return replace(self, queues={name: queue_of(work, name, transaction) for name in self.queues})

    def limited_to(self, opened: OpenTransaction) -> Targets:
        """Leave out the queues that a transaction may not add to.

        :raises InvalidArgument: it may add to none of them.
        """
        refused: dict[str, InvalidArgument] = {}
        for name in self.queues:
            try:
                opened.require_queue(name)
            except InvalidArgument as error:
                refused[name] = error
        allowed = {name: queue for name, queue in self.queues.items() if name not in refused}
        if refused and not allowed:
            raise next(iter(refused.values()))
        return Targets(allowed, {**self.refused, **{name: Problem.of(error) for name, error in refused.items()}})

    def __getitem__(self, queue_id: str) -> Queue:
        """Find the queue that a row names.

        :raises UnknownQueue: the store has no such queue.
        :raises InvalidArgument: the queue does not accept the row.
        """
        if queue_id in self.refused:
            raise self.refused[queue_id].to_error()
        if queue_id not in self.queues:
            known = ", ".join(sorted(self.queues)) or "none"
            raise UnknownQueue(f"a row names queue {queue_id!r}; the store has: {known}")
        return self.queues[queue_id]
