"""A function as the source of a queue's content, on both stores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.contexts import context_of, opened_by

from export_queue import EntryError, InvalidArgument, Range, Store, bucket
from export_queue.core.queue import Queue, find_queue
from export_queue.core.sources import FunctionSource, function
from export_queue.core.transactions import OpenTransaction

Row = tuple[int, bytes, bytes | None]


@pytest.fixture
def queue(store: Store) -> Queue:
    store.configure_queue("q", buckets=16, buckets_per_range=4)
    with store.database.read() as work:
        return find_queue(work, "q")


def rows(store: Store, queue: Queue, source: FunctionSource, *within: Range) -> list[list[Row]]:
    with source.open(store.database, queue) as content:
        pages = [page for part in within for page in content.pages(part)]
        return [list(zip(page.buckets, page.keys, page.values, strict=True)) for page in pages]


def test_a_function_is_read_in_the_order_of_its_queue(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "PAGE_ROWS", 7)
    source = FunctionSource(lambda: ((f"k{n}", {"n": n} if n else None) for n in range(30)))
    wanted = sorted((bucket(key := b"k%d" % n, queue.buckets), key, b'{"n":%d}' % n if n else None) for n in range(30))
    (halves, whole) = (rows(store, queue, source, *parts) for parts in ([Range(0, 5), Range(5, 16)], [Range(0, 16)]))
    assert joined(whole) == joined(halves) == wanted
    assert max(map(len, whole)) == 7


def joined(pages: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for page in pages for row in page]


def test_a_cut_is_below_every_transaction_in_progress(store: Store, queue: Queue) -> None:
    long = context_of(store, OpenTransaction(store.database, kind="long"))
    long.queue("q").add("late", 1)
    long.flush()
    with store.transaction() as tx:
        tx.queue("q").add("newer", 1)
        newer = tx.id
    with FunctionSource(list).open(store.database, queue) as content:
        assert content.cut < opened_by(long).id < newer
    opened_by(long).commit()
    with FunctionSource(list).open(store.database, queue) as content:
        assert content.cut >= newer


def test_what_is_no_content_is_refused(store: Store, queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="each key once"):
        rows(store, queue, FunctionSource(lambda: [("a", 1), ("a", 1)]))
    with pytest.raises(InvalidArgument, match="pairs of key and value, found str"):
        rows(store, queue, FunctionSource(lambda: ["ab"]))  # type: ignore[list-item, return-value]
    with pytest.raises(EntryError):
        rows(store, queue, FunctionSource(lambda: [(7, 1)]))
