"""``export-queue state``, ``mirror``, ``replay``, ``resend``, ``rollback``: what a queue remembers, added again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from export_queue.core.arguments import number_or_part
from export_queue.core.cli.console import FAILED, Result
from export_queue.core.cli.naming import database_of, search_current_folder
from export_queue.core.cli.options import QueueId, command, one_or_several, refuse_passwords
from export_queue.core.cli.values import KeyHex, chosen_key, plain_value, shown_value
from export_queue.core.client import Store
from export_queue.core.errors import InvalidArgument
from export_queue.core.sources import rows_of_file, rows_of_own_query, rows_of_query
from export_queue.core.state import MirrorReport


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which keys of a state to show."""

    prefix: Annotated[str | None, typer.Option(help="only keys that begin so")] = None
    as_of: Annotated[
        datetime | None,
        typer.Option(help="the state at a former time, in UTC: as far back as the queue's history reaches"),
    ] = None
    limit: Annotated[int, typer.Option(min=1, help="maximum number of keys to show")] = 100
    count: Annotated[bool, typer.Option("--count", help="only count the keys")] = False

    def moment(self) -> datetime | None:
        """Return the former time."""
        return None if self.as_of is None else self.as_of.replace(tzinfo=UTC)


@command()
def state(
    queue_id: QueueId,
    store: Store,
    selection: Selection,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="show only this key")] = None,
    key_hex: KeyHex = None,
) -> Result:
    """Show what a queue remembers: the latest value of each key. Deleted keys are left out."""
    found, moment = store.state(queue_id), selection.moment()
    given = {"--count": selection.count, "--prefix": selection.prefix is not None}
    if (key is not None or key_hex is not None) and (others := [name for name, is_given in given.items() if is_given]):
        raise InvalidArgument(f"expected one key, or {' and '.join(others)}; found both")
    if selection.count:
        number = found.count(prefix=selection.prefix, as_of=moment)
        return Result(json={"queue": queue_id, "keys": number}, lines=[f"{number} keys"])
    if key is not None or key_hex is not None:
        chosen = chosen_key(store, queue_id, key, key_hex)
        value = found.get(chosen, as_of=moment)
        return _shown([] if value is None else [(chosen, value)], more=False)
    with contextlib.closing(found.scan(prefix=selection.prefix, as_of=moment)) as entries:
        rows = [row for row, _ in zip(entries, range(selection.limit), strict=False)]
        return _shown(rows, more=len(rows) == selection.limit)


def _shown(rows: list[tuple[Any, Any]], *, more: bool) -> Result:
    found = [{"key": plain_value(key), "value": plain_value(value)} for key, value in rows]
    table = [{"key": row["key"], "value": shown_value(row["value"])} for row in found]
    return Result(json=found, table=table, lines=["… perhaps more (--limit)"] if more else ())


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The data set to which a queue is made equal."""

    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="a column of the key; repeat it for each column; by default key and value"),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(help="a file ….parquet, ….csv (with column names), ….ndjson or ….jsonl; ….csv.gz and so on"),
    ] = None
    query: Annotated[str | None, typer.Option(help="a SQL query")] = None
    database: Annotated[
        str | None,
        typer.Option(
            callback=refuse_passwords,
            help="database of the query: a URL, or env:NAME of one; by default the store's own database",
        ),
    ] = None
    value: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="a column of the value; repeat it for several; by default all columns"),
    ] = None
    scope: Annotated[str | None, typer.Option(help="beginning of the keys that the data has all of")] = None
    max_deletes: Annotated[
        str,
        typer.Option(help="largest part of the records that may be deleted, 0.0 to 1.0, or a number of them"),
    ] = "0.2"

    def rows(self, store: Store) -> Callable[[], Iterator[Any]]:
        """Return a function that reads the rows."""
        if (self.file is None) == (self.query is None):
            raise typer.BadParameter("what data? give either --file or --query")
        if self.file is not None:
            if self.database is not None:
                raise typer.BadParameter("--database is for --query, found --file")
            path = self.file
            return lambda: rows_of_file(str(path), lambda: path.open("rb"))
        query = self.query or ""
        return lambda: self._queried(store, query)

    def _queried(self, store: Store, query: str) -> Iterator[Any]:
        if self.database is None:
            yield from rows_of_own_query(store.database, query)
            return
        engine = sa.create_engine(database_of(self.database))
        try:
            with engine.connect() as connection:
                yield from rows_of_query(connection, query)
        finally:
            engine.dispose()


@command()
def mirror(
    queue_id: QueueId,
    store: Store,
    data: DataSet,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only report the difference")] = False,
    settle_timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for older transactions to end")] = 60.0,
    timeout: Annotated[
        float | None, typer.Option(help="seconds until the commit is refused; by default 24 hours")
    ] = None,
) -> Result:
    """Make a queue that remembers equal to a data set: add exactly the difference, deletes included.

    Exit code 1 and nothing added if more records would be deleted than --max-deletes allows.
    """
    report = store.mirror(
        queue_id,
        data.rows(store),
        key=one_or_several(data.key),
        value=one_or_several(data.value),
        scope=data.scope,
        max_deletes=number_or_part(data.max_deletes, what="--max-deletes"),
        dry_run=dry_run,
        settle_timeout=settle_timeout,
        timeout=timeout,
    )
    return _told(report)


@command()
def replay(
    queue_id: QueueId,
    store: Store,
    key: Annotated[list[str] | None, typer.Option(help="this key; repeat the option for several")] = None,
    prefix: Annotated[str | None, typer.Option(help="keys that begin so")] = None,
    key_range: Annotated[
        tuple[str, str] | None, typer.Option("--range", metavar="FIRST END", help="keys from FIRST to before END")
    ] = None,
    all_keys: Annotated[bool, typer.Option("--all", help="every key")] = False,
    source: Annotated[
        str,
        typer.Option(help="state, or MODULE:NAME of a function that yields keys and values, or of a source"),
    ] = "state",
    settle_timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for older transactions to end")] = 60.0,
) -> Result:
    """Add keys and values from a source to a queue once more, as new entries for all its subscriptions.

    Say which keys: --key, --prefix, --range or --all. Repeat a replay that was interrupted.
    """
    search_current_folder()

    def read(text: str) -> Any:
        return chosen_key(store, queue_id, text, None)

    report = store.replay(
        queue_id,
        keys=[*map(read, key)] if key else None,
        prefix=prefix,
        key_range=None if key_range is None else [*map(read, key_range)],
        all_keys=all_keys,
        source=source,
        settle_timeout=settle_timeout,
    )
    return Result(json=report.to_json(), lines=[report.line()])


@command()
def resend(
    queue_id: QueueId,
    store: Store,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY…", help="the keys")] = None,
    key_hex: Annotated[
        list[str] | None, typer.Option(help="a key that is not text, as hexadecimal digits; repeat it for several")
    ] = None,
    settle_timeout: Annotated[float, typer.Option(min=0, help="seconds to wait for older transactions to end")] = 60.0,
) -> Iterator[Result]:
    """Send the latest values of some keys once more, to all subscriptions: a replay of these keys from the state.

    A delete is sent for a deleted key. Status 1 means that the state does not know one of the keys.
    """
    if not keys and not key_hex:
        raise typer.BadParameter("which keys? give them as text, or by --key-hex")
    queue = store.queue(queue_id)
    if queue.parent is None and queue.history_ms is None:
        raise InvalidArgument(
            f"queue {queue_id!r} keeps no state, so the store does not know the values any more",
            hint=f"take them from where they came from: export-queue replay {queue_id} --key KEY --source MODULE:NAME, "
            f"or export-queue add {queue_id} KEY VALUE; to keep a state from now on: export-queue alter {queue_id} "
            "--state",
        )
    chosen = [chosen_key(store, queue_id, text, None) for text in keys or ()]
    chosen += [chosen_key(store, queue_id, None, digits) for digits in key_hex or ()]
    report = store.replay(queue_id, keys=chosen, settle_timeout=settle_timeout)
    yield Result(json=report.to_json(), lines=[report.line()])
    if report.absent:
        raise typer.Exit(FAILED)


@command()
def rollback(
    queue_id: QueueId,
    store: Store,
    to: Annotated[
        str,
        typer.Argument(metavar="TIME", help="a former time in UTC: 2026-01-31T08:00:00; or the id of a transaction"),
    ],
    scope: Annotated[str | None, typer.Option(help="only keys that begin so")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only report the difference")] = False,
) -> Result:
    """Bring back a former state of a queue that remembers: add the difference to it as new entries.

    Sinks follow with the next drain.
    """
    return _told(store.state(queue_id).rollback(to=_moment(to), scope=scope, dry_run=dry_run))


def _moment(text: str) -> datetime | int:
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"expected a time or the id of a transaction, found {text!r}") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _told(report: MirrorReport) -> Result:
    lines = [f"{kind}: {', '.join(map(repr, keys))}" for kind, keys in report.samples.items() if keys]
    return Result(json=report.to_json(), is_indented=False, lines=[*lines, report.line()])
