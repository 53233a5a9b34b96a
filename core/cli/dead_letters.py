"""``export-queue dead``: entries that drains set aside."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typing_extensions import override

from export_queue.core.cli.console import app, bytes_of_hex, say, show, shown_delete, text_of_bytes, utc_time
from export_queue.core.cli.options import AsJson, QueueId, StoreOptions, Who, command
from export_queue.core.cli.queues import hidden_reader, readers_of
from export_queue.core.client import Store
from export_queue.core.errors import InvalidArgument
from export_queue.core.printable import printable
from export_queue.core.queue import ALL_DEAD_LETTERS, DeadLetter, DeadLetterFilter

dead = typer.Typer(no_args_is_help=True, help="Entries that drains set aside: see why, send them again, or drop them.")
app.add_typer(dead, name="dead")

Limit = Annotated[int, typer.Option(min=1, help="most letters, oldest entries first")]

_LINE = 100
"""Characters of a line of a reason."""
_REASON = 300
"""Characters of a reason that a list shows."""


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """The options that name the entry of a letter."""

    key: Annotated[str | None, typer.Option(help="only entries of this key: text, or a number")] = None
    key_hex: Annotated[str | None, typer.Option(help="the same, for other keys: their bytes as hexadecimal digits")] = (
        None
    )
    seq: Annotated[int | None, typer.Option(help="only the entry of this sequence")] = None

    def filter(self) -> DeadLetterFilter:
        """Return what the options name."""
        if self.key is not None and self.key_hex is not None:
            raise InvalidArgument("a key is given by --key or by --key-hex, not by both")
        return DeadLetterFilter(key=self.key if self.key_hex is None else bytes_of_hex(self.key_hex), seq=self.seq)


@dataclass(frozen=True, kw_only=True)
class LetterOptions(EntryOptions):
    """The options that name letters."""

    error: Annotated[str | None, typer.Option(help="only letters with this class of error")] = None
    drain_id: Annotated[str | None, typer.Option(help="only letters of the drain of this id")] = None

    @override
    def filter(self) -> DeadLetterFilter:
        return replace(EntryOptions.filter(self), error_class=self.error, drain_id=self.drain_id)


@command("list", of=dead)
def list_letters(
    queue_id: QueueId,
    store: StoreOptions,
    named: LetterOptions,
    after: Annotated[
        str | None, typer.Option(help="go on after this letter: its seq and key_hex as SEQ:KEY_HEX, from --json")
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List letters and their reasons; values are not shown."""
    with store.open() as opened:
        which = named.filter()
        place = None if after is None else _place(after)
        found = _letters(opened, queue_id, which, after=place, limit=limit)
    rows = [_row(reader, letter) for reader, letter in found]
    below = ("key_hex", "reason", "drain_id", "value_bytes")
    show(rows, as_json=as_json, hide=(*below, *hidden_reader(queue_id, rows)))
    if as_json:
        return
    # Below the table, where a sentence has room; a reason that many letters share is told once.
    reasons = Counter((row["drain_id"], row["error"], row["reason"]) for row in rows)
    for (drain, name, reason), count in reasons.items():
        short = (
            reason if len(reason) <= _REASON else f"{reason[:_REASON]}… (whole: export-queue dead show QUEUE --key KEY)"
        )
        say_wrapped(f"{count} {'letters' if count > 1 else 'letter'} of drain {drain}: {name}: {short}")


def say_wrapped(text: str) -> None:
    """Print a sentence that may be long, in lines that break at words."""
    for line in textwrap.wrap(printable(text), _LINE, subsequent_indent="  ", break_long_words=False):
        say(line)


def _letters(
    store: Store,
    queue_id: str,
    which: DeadLetterFilter,
    *,
    after: tuple[int, bytes] | None = None,
    limit: int,
    values: bool = False,
) -> Sequence[tuple[str, DeadLetter]]:
    """Read the letters of all readers of a queue, oldest entries first, each with its reader."""
    found = [
        (reader.id, letter)
        for reader in readers_of(store, queue_id)
        for letter in store.dead_letters.list(reader.id, which, after=after, limit=limit, values=values)
    ]
    found.sort(key=lambda one: one[1].place)
    # The next page begins after a place, so that letters of one place come on one page.
    return [one for one in found if one[1].place <= found[limit - 1][1].place] if len(found) > limit else found


@command("show", of=dead)
def show_letters(
    queue_id: QueueId,
    store: StoreOptions,
    named: EntryOptions,
    value: Annotated[bool, typer.Option("--value", help="show the entry's value too")] = False,
    limit: Limit = 10,
    as_json: AsJson = False,
) -> None:
    """Show the letters of one key whole, their values only on request."""
    if named.key is None and named.key_hex is None:
        raise typer.BadParameter("which letter? give --key or --key-hex")
    with store.open() as opened:
        which = named.filter()
        found = _letters(opened, queue_id, which, limit=limit, values=value)
    rows = [_row(name, letter) | ({"value": text_of_bytes(letter.value)} if value else {}) for name, letter in found]
    if as_json or not rows:
        show(rows, as_json=as_json)
        return
    for row in map(shown_delete, rows):
        print("\n".join(f"{name:<12} {printable(found)}" for name, found in row.items()), end="\n\n")


@command(of=dead)
def retry(
    queue_id: QueueId,
    store: StoreOptions,
    named: LetterOptions,
    limit: Limit = 1000,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for drains of the letters' units")] = 600,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Put letters back into the queue, under their own sequences; the next drain sends them again."""
    with store.open() as opened:
        which = named.filter()
        moved = opened.dead_letters.retry(queue_id, which, limit=limit, lock_timeout=wait, who=who)
        left, others = _left(opened, queue_id, which)
    show([{"queue": queue_id, "requeued": moved, "left": left}], as_json=as_json)
    if others and not as_json:
        say(_told_others(others))


@command(of=dead)
def drop(
    queue_id: QueueId,
    store: StoreOptions,
    named: LetterOptions,
    everything: Annotated[bool, typer.Option("--all", help="all letters of the queue")] = False,
    limit: Limit = 1000,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Delete letters for good: their entries reach no sink. The store keeps the name of the caller."""
    with store.open() as opened:
        which = named.filter()
        if (which == ALL_DEAD_LETTERS) != everything:
            raise typer.BadParameter("which letters? name some by --key, --seq, --error or --drain-id, or say --all")
        dropped = opened.dead_letters.drop(queue_id, which, limit=limit, who=who)
        left, others = _left(opened, queue_id, which)
    show([{"queue": queue_id, "dropped": dropped, "left": left}], as_json=as_json)
    if others and not as_json:
        say(_told_others(others))


def _left(store: Store, queue_id: str, which: DeadLetterFilter) -> tuple[int, int]:
    """Count the letters that are left of those that were named, and all others of the queue."""
    left = store.dead_letters.count(queue_id, which)
    return left, store.dead_letters.count(queue_id) - left


def _told_others(others: int) -> str:
    return f"The queue has {others} more dead {'letters' if others > 1 else 'letter'} that the options do not name."


def _place(text: str) -> tuple[int, bytes]:
    seq, colon, key = text.partition(":")
    if not colon or not seq.isdecimal():
        raise InvalidArgument(f"--after: expected SEQ:KEY_HEX, found {text!r}")
    return int(seq), bytes_of_hex(key)


def _row(reader: str, letter: DeadLetter) -> dict[str, Any]:
    return {
        "queue": reader,
        "key": text_of_bytes(letter.key) if isinstance(letter.key, bytes) else str(letter.key),
        "key_hex": letter.position.key.hex(),
        "seq": str(letter.position.seq),
        "error": letter.error_class,
        "reason": letter.reason,
        "drain_id": letter.drain_id,
        "since": utc_time(letter.dead_since_ms),
        "value_bytes": letter.value_bytes,
    }
