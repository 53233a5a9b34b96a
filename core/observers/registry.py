"""The observers of one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from export_queue.core.arguments import whole_number
from export_queue.core.callables import check_runs, checked, name_of
from export_queue.core.errors import InvalidArgument, OptionsDiffer
from export_queue.core.observers.failures import ObserverFailure, observer_failures
from export_queue.core.observers.rounds import Observation, Observer, Processed, Round
from export_queue.core.store import Database, queries
from export_queue.core.tables import ObserverKind, TableOptions, add_table, cell_types, find_table
from export_queue.core.transactions import OpenTransaction

__all__ = ["Observer", "Observers"]


class Observers:
    """The observers of this process, by column.

    :param bind: returns the first argument of an observer, for its transaction.
    """

    def __init__(self, database: Database, bind: Callable[[OpenTransaction], Any]) -> None:
        self._database = database
        self._bind = bind
        self._random = random.Random()
        self._known: dict[tuple[int, bytes], Observation] = {}

    def register(self, table: TableOptions, column: str | bytes, function: Observer, kind: str) -> None:
        """Declare that a column is observed, and register its observer. Repeating this changes nothing.

        :raises OptionsDiffer: the column is observed with the other kind.
        :raises InvalidArgument: the column has another observer in this process, or its name is not allowed.
        """
        key, wanted = _column(table, column), _kind(kind)
        check_runs(function, "observer")
        before = self._known.get((table.number, key))
        if before is not None and before.function != function:
            raise InvalidArgument(
                f"column {before.name} has the observer {name_of(before.function)} in this process, "
                f"found another one, {name_of(function)}",
                hint="a column has one observer; call both functions from one",
            )
        self._declare(table, key, wanted)
        self._known[table.number, key] = Observation(table, key, wanted, function)

    def declare(self, table: TableOptions, column: str | bytes, kind: str) -> None:
        """Declare that a column is observed, without an observer. Repeating this changes nothing.

        :raises InvalidArgument: the name of the column is not allowed.
        :raises OptionsDiffer: the column is observed with the other kind.
        """
        self._declare(table, _column(table, column), _kind(kind))

    def _declare(self, table: TableOptions, column: bytes, wanted: ObserverKind) -> None:
        with self._database.begin() as work:
            found = queries.notifications.add_observed(work, table.number, column, wanted.value)
        if found != wanted:
            raise OptionsDiffer(
                f"column {column!r} of table {table.name!r} is observed in another kind: "
                f"expected {wanted.value}, found {found}"
            )

    def process(
        self, *, limit: int | None = None, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Processed:
        """Call observers for all notifications that are due; see :meth:`Store.process_notifications`."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidArgument(f"limit: expected a number of notifications from 1 on, found {limit!r}")
        stop = checked(stop or (lambda: False), "stop")
        if not self._known:
            raise InvalidArgument(
                "no observer is registered in this process", hint="call store.observe(table, column, function) first"
            )
        self._follow()
        return Round(self._database, self._bind, self._random, limit=limit, timeout=timeout, stop=stop).run(
            list(self._known.values())
        )

    def _follow(self) -> None:
        """If the store was restored or created anew, observe the tables under their new numbers."""
        for key, one in list(self._known.items()):
            table = one.table
            found = find_table(self._database, table.name) or add_table(self._database.begin(), table)
            if found.number != table.number:
                del self._known[key]
                self.register(found, one.column, one.function, one.kind)

    def failures(self, *, limit: int) -> list[ObserverFailure]:
        """Return the failures in all processes whose notifications are pending."""
        most = whole_number(limit, what="limit", least=1)
        with self._database.read() as work:
            return observer_failures(work, limit=most)


def _column(table: TableOptions, column: str | bytes) -> bytes:
    return cell_types(table.name, table.row, table.value).encode_column(column)


def _kind(kind: str) -> ObserverKind:
    try:
        return ObserverKind(kind)
    except ValueError as error:
        known = [one.value for one in ObserverKind]
        raise InvalidArgument(f"kind: expected one of {known}, found {kind!r}") from error
