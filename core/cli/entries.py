"""``export-queue add``, ``peek``, ``why`` and ``idempotency``: entries, and the story of a key or a unit of work."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from export_queue.core.cli.console import Result, seq_time, shown_delete, text_of_bytes, utc_time
from export_queue.core.cli.finished import drain_row, problem_lines
from export_queue.core.cli.options import QueueId, Who, command
from export_queue.core.cli.queues import hidden_reader, readers_of
from export_queue.core.cli.values import KeyHex, chosen_key, given_value
from export_queue.core.client import Store, TransactionContext
from export_queue.core.drain import FinishedDrain, KeyStory
from export_queue.core.queue import DeadLetter, QueuedEntry


@command()
def add(
    queue_id: QueueId,
    store: Store,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="the key")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE|-", help="the value, as the queue stores it; - reads standard input")
    ] = None,
    key_hex: KeyHex = None,
    delete: Annotated[bool, typer.Option("--delete", help="instead of a value: delete the record of the key")] = False,
) -> Result:
    """Add one entry to a queue, in a transaction of its own. The next drain delivers it.

    With --key-hex, leave out KEY. Write -- before a value that begins with a dash.
    """
    if key_hex is not None and value is None:
        key, value = None, key
    queue = store.queue(queue_id)
    chosen = chosen_key(store, queue_id, key, key_hex)
    content = given_value(queue, value, delete=delete)

    def adding(tx: TransactionContext) -> tuple[int, TransactionContext]:
        tx.queue(queue_id).add(chosen, content)
        return tx.id, tx

    (seq, tx), encoded = store.run(adding), queue.encode_key(chosen)
    shown = {"queue": queue_id, "key": text_of_bytes(encoded), "key_hex": encoded.hex()}
    what = "a delete" if content is None else "a value"
    return Result(
        json=shown | {"seq": str(seq), "token": tx.token},
        lines=[f"added {what} of key {shown['key']!r} to queue {queue_id} (seq {seq}); the next drain delivers it"],
    )


@command()
def peek(
    queue_id: QueueId,
    store: Store,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="maximum number of entries of each reader")] = 10,
    key: Annotated[str | None, typer.Option(help="only entries of this key")] = None,
    key_hex: KeyHex = None,
    values: Annotated[bool, typer.Option("--values", help="also show values")] = False,
) -> Result:
    """Show pending entries in the order in which a drain reads them; nothing is removed."""
    chosen = None if key is None and key_hex is None else chosen_key(store, queue_id, key, key_hex)
    rows = [
        {"queue": reader.id, **_entry(one)} | ({"value": text_of_bytes(one.value)} if values else {})
        for reader in readers_of(store, queue_id)
        for one in store.peek(reader.id, key=chosen, limit=limit, values=values)
    ]
    return Result(json=rows, table=[*map(shown_delete, rows)], hide=("key_hex", *hidden_reader(queue_id, rows)))


@command()
def why(
    queue_id: QueueId,
    store: Store,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="the key")] = None,
    key_hex: KeyHex = None,
) -> Result:
    """Explain what happened to one key: its last commit, pending entries, dead letters, and the drains of its unit."""
    chosen = chosen_key(store, queue_id, key, key_hex)
    stories = [store.why(reader.id, chosen) for reader in readers_of(store, queue_id)]
    is_queue = [story.queue.id for story in stories] == [queue_id]
    lines = [line for story in stories for line in (*_lines(story), "")]
    return Result(json=_story(stories[0]) if is_queue else [*map(_story, stories)], lines=lines[:-1])


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
        "exported": story.exported,
        "last_drain": drain_row(story.last_drain),
        "possible_delivery": drain_row(story.possible_delivery),
    }


_EXPORTED = {
    True: "yes, the sink has acknowledged the last commit",
    False: "no",
    None: "not known, since no commit is",
}


def _lines(story: KeyStory) -> list[str]:
    lines = [
        f"queue {story.queue.id}, sink {story.queue.sink or 'none yet'}",
        f"key {text_of_bytes(story.key)!r}: bucket {story.bucket}, unit {story.unit}",
        f"last commit: {_commit_text(story)}",
        f"exported: {_EXPORTED[story.exported]}",
        f"pending: {len(story.queued) or 'nothing'}",
    ]
    lines += [
        f"  seq {one.position.seq} of {seq_time(one.position.seq)}, "
        + ("deletes the record" if one.value_bytes is None else f"{one.value_bytes} bytes")
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
    lines.append(f"last drain of its unit: {_drain_text(story.last_drain)}")
    lines += problem_lines(None if story.last_drain is None else story.last_drain.report.problem)
    if story.possible_delivery is not None:
        lines.append(f"{_delivery_text(story)}: {_drain_text(story.possible_delivery)}")
    if story.queue.first_load == "missing":
        lines.append("first load: missing, so this subscription lacks what was committed before it was created")
    lines.append("Writes of a transaction in progress are unknown until it stages or commits.")
    return lines


def _commit_text(story: KeyStory) -> str:
    commit = story.last_commit
    # A subscription does not know what was committed before it was created.
    to, before = ("", "") if story.queue.parent is None else (" to this subscription", ", or before it was created")
    if commit is None and story.possible_delivery is None:
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
        return "by a bound transaction; no entry is pending, and its time is not on record (known by its conflict key)"
    return f"seq {commit.seq} of {seq_time(commit.seq)}, known by its {commit.known_by}"


def _delivery_text(story: KeyStory) -> str:
    if story.last_commit is None:
        return "newest drain that has delivered anything of its unit, perhaps not this key"
    if story.last_commit.known_by in ("conflict key", "state"):
        return "newest drain that may have delivered it"
    return "newest drain that may have delivered an older entry of it"


def _drain_text(drain: FinishedDrain | None) -> str:
    if drain is None:
        return "none on record"
    return f"{drain.report.drain_id}, {utc_time(drain.finished_ms)}: {drain.report.line()}"


@command()
def idempotency(
    name: Annotated[
        str, typer.Argument(metavar="KEY", help="the unit of work; for a task: dag/run/task or dag/run/task/map index")
    ],
    store: Store,
    close: Annotated[bool, typer.Option("--close", help="let the same unit of work take effect again")] = False,
    who: Who = None,
) -> Result:
    """Show whether a unit of work has taken effect, and with which result.

    After a key was closed, the status shows a mark until the complete command closes the mark.
    """
    was_closed = close and store.close_idempotency_key(name, who=who)
    state = store.idempotency(name)
    is_closed = not state.committed and state.generation > 1
    # The last commit under the key, even if its generation was closed since.
    row = {
        "idempotency_key": name,
        "committed": state.committed or is_closed,
        "closed": is_closed,
        "generation": state.generation - 1 if is_closed else state.generation,
        "result": state.previous if is_closed else state.result,
    }
    if close and not was_closed:
        reason = "is already closed" if row["committed"] else "has not taken effect, so there is nothing to close"
        sys.exit(f"idempotency key {name!r} {reason}")
    if not row["committed"]:
        line = "No commit under this key is on record: the work has not taken effect, or clean-up deleted the record."
    elif is_closed:
        line = "The work has taken effect, and the key was closed: the next run is new work."
    else:
        line = (
            "The work has taken effect: a retry returns the stored result. To let it take effect again: "
            f"export-queue idempotency {shlex.quote(name)} --close"
        )
    return Result(json=[row], table=[row], lines=[line])
