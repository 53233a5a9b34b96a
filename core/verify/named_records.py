"""The records that a sink should have, as a user's function names them, for exporters that name records by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from export_queue.core.callables import check_runs, returned
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import import_object
from export_queue.core.sinks import Operations, OperationsBuilder, Put

RecordFunction = str | Callable[[], Iterable[Put]]
_PAGE = 10_000


def find_function(records: RecordFunction) -> Callable[[], Iterable[Put]]:
    """Return a function that yields records.

    :param records: the function, or its import path ``module:name``.
    :raises InvalidArgument: the name leads to nothing, or to something that is not called.
    """
    found: object = records
    if isinstance(records, str):
        hint = "name a function that yields the records that the sink should have: module:name"
        found = import_object(records, error=InvalidArgument, hint=hint)
    return check_runs(found, "records", may_yield=True)


def named_records(records: RecordFunction) -> Iterator[Operations]:
    """Call a function, and return its records in pages.

    :raises InvalidArgument: it yields something else than records.
    """
    rest: Iterator[Any] = iter(returned(find_function(records)(), "records", may_yield=True))
    while block := list(islice(rest, _PAGE)):
        builder = OperationsBuilder()
        for position, record in enumerate(block):
            if not isinstance(record, Put):
                raise InvalidArgument(f"a function of records yields Put, found {type(record).__name__}")
            builder.add([record], seq=0, entry=position)
        yield builder.build()
