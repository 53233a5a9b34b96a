"""Filling the first load of a subscription from a source, a part at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from export_queue.core.errors import InvalidArgument, TransactionsInProgress
from export_queue.core.queue import Queue, Range, find_queue, missing_load, note_first_load
from export_queue.core.retry import Retry
from export_queue.core.segments import BulkWriter, Shared, load_pyarrow, share_state
from export_queue.core.sources.finding import STATE, AnySource, name_of_source, opened_content
from export_queue.core.sources.protocol import Content
from export_queue.core.sources.state import StateContent
from export_queue.core.store import Database
from export_queue.core.transactions import OpenTransaction

_FILES_FROM = 50_000
"""Entries from which they are added as files, if the store has a place for them."""
_IN_A_FILE = 500_000
_FILE_BYTES = 128 << 20
"""Entries, and bytes of their keys and values, that are staged at once as files."""
_ROWS_AT_ONCE = 10_000
_ROWS_BYTES = 16 << 20
"""The same for rows."""

OnProgress = Callable[[int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLoadReport:
    """What the first load of a subscription has added."""

    subscription: str
    source: str
    load: int
    """The id of the transaction, and the sequence of the entries that it has added."""
    entries: int
    """Entries that were added, or that it shares with the state."""
    shared: int = 0
    """How many of them are in files of the state, which are shared and not copied."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. The id is text, because it exceeds 2⁵³."""
        return {**asdict(self), "load": str(self.load)}

    def line(self) -> str:
        """Summarise the load in one line."""
        shared = f", {self.shared} of them in shared files" if self.shared else ""
        return f"{self.subscription}: the first load has {self.entries} entries from {self.source}{shared}"


@contextlib.contextmanager
def begun_first_load(
    database: Database, subscription: str, *, timeout: float | None = None, settle_timeout: float = 60.0
) -> Iterator[tuple[OpenTransaction, Queue]]:
    """Run a block in the transaction of a first load; its commit completes the load.

    :param timeout: seconds until the commit is refused; 24 hours by default.
    :param settle_timeout: seconds to wait for older transactions to end.
    :returns: the transaction, and the subscription.
    :raises InvalidArgument: the first load is not missing, or has been completed by another.
    :raises RegistrationLost: a newer first load of the subscription has replaced this one.
    :raises TransactionsInProgress: older transactions did not end in time.
    """
    with database.read() as work:
        reader = missing_load(work, subscription)
    opened = OpenTransaction(database, kind="long", timeout=timeout, load=reader.number)
    with opened.abort_on_error():
        opened.read_settled(Retry(attempts=None, seconds=settle_timeout, first_pause=0.02))
        with database.read() as work:
            missing_load(work, subscription)  # an older load may have committed during the wait
        yield opened, reader
        number = opened.id
        opened.commit()
    with database.begin() as work:
        note_first_load(work, reader, load=number)


def load_from(
    opened: OpenTransaction, subscription: Queue, source: AnySource, on_progress: OnProgress | None = None
) -> FirstLoadReport:
    """Add the content of a source to a subscription, in its first load.

    Of the state, the subscription gets all entries with their sequences: files are shared, and rows are written into
    one. If the buckets differ, or there is no place for files, entries are copied, as those of other sources are.
    Copies have the sequence of the load.

    Entries that are deletes are added too: something older may be pending for the subscription.

    :param opened: the transaction of the first load; all older transactions have ended.
    :param source: where the content comes from; see :func:`find_source`.
    :param on_progress: called repeatedly with the number of entries so far.
    :raises InvalidArgument: the source is wrong, or the subscription is the state and the source too.
    :raises TransactionsInProgress: a first load of the state has begun earlier and is not complete.
    """
    if subscription.is_state and source == STATE:
        raise InvalidArgument(
            f"first load of {subscription.id!r}: expected another source, found the state itself",
            hint="name a table of the store, a SQL query, or a function that yields keys and values",
        )
    with opened_content(opened.database, subscription.source, source) as (queue, content):
        if content.cut < opened.id - 1:
            raise TransactionsInProgress(
                f"first load of {subscription.id!r}: the source has what was committed up to {content.cut}, and must "
                f"have everything before {opened.id}: an older first load of the state is in progress",
                hint="repeat it when that load has ended",
            )
        shown = on_progress or (lambda _: None)
        writer = BulkWriter(opened, subscription)
        shared = _share(opened, subscription, content, shown) if writer.has_place else None
        added = _add_all(writer, _entries(content, queue), shown) if shared is None else shared.rows
        in_files = 0 if shared is None else shared.in_files
        shown(added + in_files)
    return FirstLoadReport(
        subscription=subscription.id,
        source=name_of_source(source),
        load=opened.id,
        entries=added + in_files,
        shared=in_files,
    )


def _share(opened: OpenTransaction, subscription: Queue, content: Content, on_progress: OnProgress) -> Shared | None:
    """Give everything that a state has to a subscription, if both have the same buckets; else return None."""
    if not isinstance(content, StateContent):
        return None
    with opened.database.read() as work:
        reader = find_queue(work, subscription.id)
    if content.reader.older or content.reader.layout != reader.layout:
        return None
    return share_state(opened, content.reader, reader, on_progress)


def _entries(content: Content, queue: Queue) -> Iterator[tuple[bytes, bytes | None]]:
    for page in content.pages(Range(0, queue.buckets, queue.layout)):
        yield from zip(page.keys, page.values, strict=True)


def _add_all(writer: BulkWriter, entries: Iterable[tuple[bytes, bytes | None]], on_progress: OnProgress) -> int:
    """Add entries with different keys as rows; as files, if they are many and there is a place."""
    has_files = writer.has_place
    most, most_bytes = (_FILES_FROM, _FILE_BYTES) if has_files else (_ROWS_AT_ONCE, _ROWS_BYTES)
    block: dict[bytes, bytes | None] = {}
    size = added = 0
    for key, value in entries:
        block[key] = value
        size += len(key) + len(value or b"")
        if len(block) >= most or size >= most_bytes:
            _add(writer, block, in_files=has_files)
            added += len(block)
            on_progress(added)
            block, size = {}, 0
            most = _IN_A_FILE if has_files else most
    rows = list(block.items())
    if added and has_files and rows:
        _add(writer, block, in_files=True)
    else:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            writer.add_encoded_rows(dict(rows[start : start + _ROWS_AT_ONCE]))
    return added + len(rows)


def _add(writer: BulkWriter, block: Mapping[bytes, bytes | None], *, in_files: bool) -> None:
    if not in_files:
        writer.add_encoded_rows(block)
        return
    pa = load_pyarrow()
    columns = [pa.array(list(found), pa.binary()) for found in (block, block.values())]
    writer.add_encoded([pa.RecordBatch.from_arrays(columns, names=["key", "value"])], in_files=True)
