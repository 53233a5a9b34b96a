"""``export-queue dead``: dead letters, which are entries that drains have set aside."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typing_extensions import override

from export_queue.core.cli.console import Result, app, bytes_of_hex, shown_delete, text_of_bytes, utc_time
from export_queue.core.cli.options import QueueId, Who, command
from export_queue.core.cli.queues import hidden_reader, readers_of
from export_queue.core.client import Store
from export_queue.core.errors import InvalidArgument
from export_queue.core.printable import printable
from export_queue.core.queue import ALL_DEAD_LETTERS, DeadLetter, DeadLetterFilter

dead = typer.Typer(no_args_is_help=True, help="Entries that drains have set aside: see why, retry them, or drop them.")
app.add_typer(dead, name="dead")

Limit = Annotated[int, typer.Option(min=1, help="maximum number of letters; oldest entries first")]

_LINE = 100
"""Maximum length of a line of a reason."""
_REASON = 300
"""Maximum length of a reason in a list."""


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """The options that select letters by their entry."""

    key: Annotated[str | None, typer.Option(help="only entries with this key: text or a number")] = None
    key_hex: Annotated[str | None, typer.Option(help="the same for other keys: the bytes as hexadecimal digits")] = None
    seq: Annotated[int | None, typer.Option(help="only the entry with this sequence")] = None

    def filter(self) -> DeadLetterFilter:
        """Return the filter that the options describe."""
        if self.key is not None and self.key_hex is not None:
            raise InvalidArgument("expected one of --key and --key-hex, found both")
        return DeadLetterFilter(key=self.key if self.key_hex is None else bytes_of_hex(self.key_hex), seq=self.seq)


@dataclass(frozen=True, kw_only=True)
class LetterOptions(EntryOptions):
    """The options that select letters."""

    error: Annotated[str | None, typer.Option(help="only letters with this error class")] = None
    drain_id: Annotated[str | None, typer.Option(help="only letters of the drain with this id")] = None

    @override
    def filter(self) -> DeadLetterFilter:
        return replace(EntryOptions.filter(self), error_class=self.error, drain_id=self.drain_id)


@command("list", of=dead)
def list_letters(
    queue_id: QueueId,
    store: Store,
    selected: LetterOptions,
    after: Annotated[
        str | None, typer.Option(help="continue after this letter: its seq and key_hex as SEQ:KEY_HEX, from --json")
    ] = None,
    limit: Limit = 100,
) -> Result:
    """List dead letters and their reasons, without values."""
    position = None if after is None else _position(after)
    rows = [_row(*found) for found in _letters(store, queue_id, selected.filter(), after=position, limit=limit)]
    # Reasons are printed once each, below the table, where there is room for a sentence.
    reasons = Counter((row["drain_id"], row["error"], row["reason"]) for row in rows)
    return Result(
        json=rows,
        table=rows,
        hide=("key_hex", "reason", "drain_id", "value_bytes", *hidden_reader(queue_id, rows)),
        lines=[line for reason, count in reasons.items() for line in _reason_lines(*reason, count)],
    )


def _reason_lines(drain_id: str, error: str, reason: str, count: int) -> list[str]:
    if len(reason) > _REASON:
        reason = f"{reason[:_REASON]}… (in full: export-queue dead show QUEUE --key KEY)"
    text = f"{count} {'letters' if count > 1 else 'letter'} of drain {drain_id}: {error}: {reason}"
    return textwrap.wrap(printable(text), _LINE, subsequent_indent="  ", break_long_words=False)


def _letters(
    store: Store,
    queue_id: str,
    which: DeadLetterFilter,
    *,
    after: tuple[int, bytes] | None = None,
    limit: int,
    values: bool = False,
) -> Sequence[tuple[str, DeadLetter]]:
    """Read the letters of all readers of a queue, oldest entries first, each with the id of its reader."""
    found = [
        (reader.id, letter)
        for reader in readers_of(store, queue_id)
        for letter in store.dead_letters.list(reader.id, which, after=after, limit=limit, values=values)
    ]
    found.sort(key=lambda one: one[1].id)
    # The next page starts after a position, so all letters of one position must be on the same page.
    return [one for one in found if one[1].id <= found[limit - 1][1].id] if len(found) > limit else found


@command("show", of=dead)
def show_letters(
    queue_id: QueueId,
    store: Store,
    selected: EntryOptions,
    value: Annotated[bool, typer.Option("--value", help="also show the entry's value")] = False,
    limit: Limit = 10,
) -> Result:
    """Show the letters of one key in full; values only on request."""
    if selected.key is None and selected.key_hex is None:
        raise typer.BadParameter("which letter? give --key or --key-hex")
    found = _letters(store, queue_id, selected.filter(), limit=limit, values=value)
    rows = [_row(name, letter) | ({"value": text_of_bytes(letter.value)} if value else {}) for name, letter in found]
    lines = [
        line
        for row in map(shown_delete, rows)
        for line in (*(f"{name:<12} {printable(text)}" for name, text in row.items()), "")
    ]
    return Result(json=rows, lines=lines or ["nothing to show"])


@command(of=dead)
def retry(
    queue_id: QueueId,
    store: Store,
    selected: LetterOptions,
    limit: Limit = 1000,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for drains of the letters' units")] = 600,
    who: Who = None,
) -> Result:
    """Put letters back into the queue with their original sequences; the next drain sends them again."""
    which = selected.filter()
    moved = store.dead_letters.retry(queue_id, which, limit=limit, lock_timeout=wait, who=who)
    return _left(store, queue_id, which, requeued=moved)


@command(of=dead)
def drop(
    queue_id: QueueId,
    store: Store,
    selected: LetterOptions,
    everything: Annotated[bool, typer.Option("--all", help="all letters of the queue")] = False,
    limit: Limit = 1000,
    who: Who = None,
) -> Result:
    """Delete letters permanently: their entries reach no sink. The store records who did it."""
    which = selected.filter()
    if (which == ALL_DEAD_LETTERS) != everything:
        raise typer.BadParameter("which letters? select some by --key, --seq, --error or --drain-id, or pass --all")
    return _left(store, queue_id, which, dropped=store.dead_letters.drop(queue_id, which, limit=limit, who=who))


def _left(store: Store, queue_id: str, which: DeadLetterFilter, **done: int) -> Result:
    """Count the selected letters that are left, and the other ones of the queue."""
    left = store.dead_letters.count(queue_id, which)
    others = store.dead_letters.count(queue_id) - left
    rows = [{"queue": queue_id, **done, "left": left}]
    noun = "letters" if others > 1 else "letter"
    lines = [f"The queue has {others} more dead {noun} that the options do not select."] if others else []
    return Result(json=rows, table=rows, lines=lines)


def _position(text: str) -> tuple[int, bytes]:
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
