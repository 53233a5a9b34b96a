"""``export-queue peek`` and ``why``: the entries that wait, and the story of one key."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from export_queue.core.cli.console import (
    bytes_of_hex,
    print_json,
    seq_time,
    show,
    show_one,
    shown_delete,
    text_of_bytes,
    utc_time,
)
from export_queue.core.cli.options import AsJson, QueueId, StoreOptions, command
from export_queue.core.cli.queues import hidden_reader, readers_of
from export_queue.core.client import Store
from export_queue.core.drain import FinishedDrain, KeyStory
from export_queue.core.errors import CodecError, InvalidArgument
from export_queue.core.printable import printable
from export_queue.core.queue import DeadLetter, QueuedEntry

KeyHex = Annotated[str | None, typer.Option(help="a key that is not text, as hexadecimal digits")]


@command()
def peek(
    queue_id: QueueId,
    store: StoreOptions,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="most entries of a reader")] = 10,
    key: Annotated[str | None, typer.Option(help="only entries of this key")] = None,
    key_hex: KeyHex = None,
    values: Annotated[bool, typer.Option("--values", help="show values, too")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the entries that wait, in the order in which a drain takes them; nothing is removed."""
    with store.open() as opened:
        chosen = None if key is None and key_hex is None else _key(opened, queue_id, key, key_hex)
        rows = [
            {"queue": reader.id, **_entry(one)} | ({"value": text_of_bytes(one.value)} if values else {})
            for reader in readers_of(opened, queue_id)
            for one in opened.peek(reader.id, key=chosen, limit=limit, values=values)
        ]
    show(
        rows if as_json else list(map(shown_delete, rows)),
        as_json=as_json,
        hide=("key_hex", *hidden_reader(queue_id, rows)),
    )


@command()
def why(
    queue_id: QueueId,
    store: StoreOptions,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="the key")] = None,
    key_hex: KeyHex = None,
    as_json: AsJson = False,
) -> None:
    """Tell what the store knows of one key: its last commit, what waits, what is dead, and which drains came by."""
    with store.open() as opened:
        chosen = _key(opened, queue_id, key, key_hex)
        stories = [opened.why(reader.id, chosen) for reader in readers_of(opened, queue_id)]
    if as_json and [story.queue.id for story in stories] == [queue_id]:
        show_one(_story(stories[0]), as_json=True)
    elif as_json:
        print_json([_story(story) for story in stories], indented=True)
    else:
        print("\n\n".join("\n".join(map(printable, _told(story))) for story in stories))


def _key(store: Store, queue_id: str, key: str | None, key_hex: str | None) -> Any:
    """Return a key of the command line as the queue's codec takes it."""
    if (key is None) == (key_hex is None):
        raise typer.BadParameter("which key? give it as text, or by --key-hex")
    raw = key.encode() if key is not None else bytes_of_hex(key_hex or "")
    try:
        return store.queue(queue_id).decode_key(raw)
    except CodecError:
        codec = store.queue(queue_id).key
        raise InvalidArgument(
            f"keys of queue {queue_id!r} have the codec {codec}, which does not read {raw!r}"
        ) from None


def _entry(entry: QueuedEntry) -> dict[str, Any]:
    position = entry.position
    return {
        "key": text_of_bytes(position.key),
        "key_hex": position.key.hex(),
        "seq": str(position.seq),
        "time": seq_time(position.seq),
        "value_bytes": entry.value_bytes,
    }


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return {
        "seq": str(letter.position.seq),
        "time": seq_time(letter.position.seq),
        "error": letter.error_class,
        "since": utc_time(letter.dead_since_ms),
        "drain_id": letter.drain_id,
    }


def _drain(drain: FinishedDrain | None) -> dict[str, Any] | None:
    if drain is None:
        return None
    report = drain.report
    return {
        "drain_id": report.drain_id,
        "finished": utc_time(drain.finished_ms),
        "sink": report.sink,
        "acknowledged": report.acknowledged,
        "dead": report.dead,
        "stopped_by": None if report.problem is None else report.problem.error_class,
        "message": None if report.problem is None else report.problem.message,
        "hint": None if report.problem is None else report.problem.hint or None,
    }


def _story(story: KeyStory) -> dict[str, Any]:
    commit = story.last_commit
    return {
        "queue": story.queue.id,
        "sink": story.queue.sink,
        "key": text_of_bytes(story.key),
        "key_hex": story.key.hex(),
        "bucket": story.bucket,
        "unit": story.unit.to_json(),
        "last_commit": None
        if commit is None
        else {
            "seq": None if commit.seq is None else str(commit.seq),
            "time": None if commit.seq is None else seq_time(commit.seq),
            "known_by": commit.known_by,
        },
        "queued": [
            {name: value for name, value in _entry(one).items() if name not in ("key", "key_hex")}
            for one in story.queued
        ],
        "not_committed": [str(seq) for seq in story.not_committed],
        "dead": [_letter(letter) for letter in story.dead],
        "last_drain": _drain(story.last_drain),
        "may_have_brought": _drain(story.may_have_brought),
    }


def _told(story: KeyStory) -> list[str]:
    """Tell a story in lines."""
    lines = [
        f"queue {story.queue.id}, sink {story.queue.sink or 'none yet'}",
        f"key {text_of_bytes(story.key)!r}: bucket {story.bucket}, unit {story.unit}",
        f"last commit: {_told_commit(story)}",
        f"waiting: {len(story.queued) or 'nothing'}",
    ]
    lines += [
        f"  seq {one.position.seq} of {seq_time(one.position.seq)}, "
        + ("says that the record is gone" if one.value_bytes is None else f"{one.value_bytes} bytes")
        for one in story.queued
    ]
    if story.not_committed:
        lines.append("staged, not committed (a transaction in progress, or one that ended without a commit):")
        lines += [f"  seq {seq} of {seq_time(seq)}" for seq in story.not_committed]
    lines.append(f"dead letters: {len(story.dead) or 'none'}")
    lines += [
        f"  seq {letter.position.seq} of {seq_time(letter.position.seq)}: {letter.error_class}, "
        f"since {utc_time(letter.dead_since_ms)}, drain {letter.drain_id}"
        for letter in story.dead
    ]
    lines += [f"last drain of its unit: {_told_drain(story.last_drain)}", *_told_problem(story.last_drain)]
    if story.may_have_brought is not None:
        lines.append(f"{_told_delivery(story)}: {_told_drain(story.may_have_brought)}")
    if story.queue.first_load == "missing":
        lines.append("first load: missing, so this subscription lacks what was committed before it was made")
    lines.append("Writes of transactions in progress are not known before they stage or commit.")
    return lines


def _told_commit(story: KeyStory) -> str:
    commit = story.last_commit
    # A subscription knows nothing of what was committed before it was made.
    to, before = ("", "") if story.queue.parent is None else (" to this subscription", ", or before it was made")
    if commit is None and story.may_have_brought is None:
        return (
            f"none on record{to}, and no drain on record has delivered anything of its unit: the key was probably "
            f"never committed{before}"
        )
    if commit is None:
        return (
            f"none on record{to}: the key was never committed{before}, or its entries were delivered or dropped, which "
            "leaves no trace of a key"
        )
    if commit.seq is None:
        return (
            "by a bound transaction; no entry waits any more, and its time is not on record (known by its conflict key)"
        )
    return f"seq {commit.seq} of {seq_time(commit.seq)}, known by its {commit.known_by}"


def _told_delivery(story: KeyStory) -> str:
    if story.last_commit is None:
        return "newest drain that has delivered anything of its unit, perhaps not this key"
    if story.last_commit.known_by == "conflict key":
        return "newest drain that may have delivered it"
    return "newest drain that may have delivered an older entry of it"


def _told_drain(drain: FinishedDrain | None) -> str:
    if drain is None:
        return "none on record"
    return f"{drain.report.drain_id}, {utc_time(drain.finished_ms)}: {drain.report.line()}"


def _told_problem(drain: FinishedDrain | None) -> list[str]:
    """Tell why a drain stopped, with what to do about it."""
    if drain is None or drain.report.problem is None:
        return []
    problem = drain.report.problem
    told = f"{problem.error_class}: {problem.message}" + (f"\nhint: {problem.hint}" if problem.hint else "")
    return [f"  {line}" for line in told.splitlines()]
