"""A user's function as a source: whatever yields the keys and values that a queue's consumers should have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from export_queue.core.callables import returned
from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Entries, Queue, Range, bucket
from export_queue.core.sources.spool import EntrySpool, Row
from export_queue.core.store import Database
from export_queue.core.transactions import settled_snapshot

PAGE_ROWS = 10_000
PAGE_BYTES = 16 << 20


class FunctionSource:
    """The content of a queue that a function reads, for example from the table that the entries describe.

    The function is called once for each reading, after the cut was taken. It must see everything that was committed
    before its call, in one consistent read: with PostgreSQL, one statement or one ``REPEATABLE READ`` transaction.
    Sequences are not known, so that only documents can be compared.

    :param function: takes no arguments and yields pairs of key and value, in any order, each key once. Keys and values
        are those that the producers add to the queue; they are encoded with its codecs.
    """

    def __init__(self, function: Callable[[], Iterable[tuple[Any, Any]]]) -> None:
        self._function = function

    @contextlib.contextmanager
    def open(self, database: Database, queue: Queue) -> Iterator[FunctionContent]:
        """Call the function, and keep the result in a temporary file until the context ends.

        :raises InvalidArgument: the function yields a key twice, or something else than pairs.
        :raises EntryError: a key or a value does not fit the queue's codecs.
        """
        cut = settled_snapshot(database, queue.number).read_pointer
        with spooled(queue, cut, returned(self._function(), "source", may_yield=True)) as content:
            yield content


@contextlib.contextmanager
def spooled(queue: Queue, cut: int, pairs: Iterable[Any]) -> Iterator[FunctionContent]:
    """Keep pairs of key and value in a temporary file until the context ends."""
    with contextlib.closing(EntrySpool()) as spool:
        twice = spool.add(_rows(queue, pairs))
        if twice is not None:
            raise InvalidArgument(f"a source yields each key once, found key {queue.decode_key(twice)!r} twice")
        yield FunctionContent(cut, spool)


def _rows(queue: Queue, pairs: Iterable[Any]) -> Iterator[tuple[int, bytes, bytes | None]]:
    if not isinstance(pairs, Iterable):
        raise InvalidArgument(f"a source yields pairs of key and value, found {type(pairs).__name__}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidArgument(f"a source yields pairs of key and value, found {type(pair).__name__}")
        key = queue.encode_key(pair[0])
        yield bucket(key, queue.buckets), key, queue.encode_value(pair[1], key=pair[0])


@dataclass(frozen=True, slots=True)
class FunctionContent:
    """What a function has yielded."""

    cut: int
    spool: EntrySpool
    is_ranked: bool = False

    def pages(self, within: Range) -> Iterator[Entries]:
        page: list[Row] = []
        size = 0
        for row in self.spool.between((within.first, b""), (within.end, b"")):
            page.append(row)
            size += len(row[1]) + len(row[3] or b"")
            if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
                yield _entries(page, is_last=False)
                page, size = [], 0
        yield _entries(page, is_last=True)


def _entries(rows: list[Row], *, is_last: bool) -> Entries:
    return Entries([r[0] for r in rows], [r[1] for r in rows], [0] * len(rows), [r[3] for r in rows], is_last)
