"""A workload whose journals are a history that can be checked: lists, registers, many processes, and what ends them.

Clients append unique numbers to lists (cells that they read and write back with one number more) and overwrite
registers blindly. Each notes what it did in a file of its own: the operations and the request before the commit is
sent, the answer after it. A client that takes the place of a dead one first asks what became of its last request.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from export_queue.core.client import Store, TransactionContext
from export_queue.core.errors import (
    CommitOutcomeUnknown,
    ExportQueueError,
    StoreError,
    TransactionError,
)
from export_queue.core.testing.histories import Append, HistoryTransaction, Operation, Read, ReadList, Write
from export_queue.core.transactions import prune, sweep

SLOTS = 10
"""Lists in use at any time; even ones conflict by row, odd ones by cell."""
QUIET = (0, 1)
"""Slots to which only clients that oversleep append: elsewhere newer versions soon cover what they leave."""
MARKS = 6
LIST_LENGTH = 16
"""A longer list is left for the next one of its slot: reading whole lists would take ever longer."""
SHORT_TIMEOUT, TIMEOUTS = 0.3, (2.0, 2.0, 10.0)
TAIL = 1 << 16
VALUES_PER_SESSION = 1_000_000

KINDS: dict[str, Callable[..., Operation]] = {"L": ReadList, "A": Append, "R": Read, "W": Write}
LETTERS = {kind: letter for letter, kind in KINDS.items()}
"""How journals name operations."""
STATUSES: dict[str, Literal["ok", "aborted", "unknown"]] = {
    "committed": "ok",
    "refused": "aborted",
    "unknown": "unknown",
}


def configure(store: Store) -> None:
    """Create the tables of the workload."""
    store.configure_table("rows", conflict="row")
    store.configure_table("cells", conflict="cell")
    store.configure_table("marks", conflict="cell")


@dataclass
class Shared:
    """What the processes of one run share, as arrays in shared memory."""

    done: Any
    """Transactions that each client has ended."""
    generations: Any
    """By slot which of its lists is in use; a hint."""
    pruned: Any
    """Long transactions that were swept after their time-out and pruned."""
    stop: Any
    clock_offset: Any
    """Milliseconds that the host's clock seems to have been set forward; only SQLite takes its time from there."""

    def clock(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.clock_offset.value)


class GivenUp(Exception):
    """A client thinks better of it."""


@dataclass
class Journal:
    """A file that a client appends to, one whole line at a time."""

    path: Path
    file: int = field(init=False)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **event: object) -> None:
        os.write(self.file, orjson.dumps(event) + b"\n")

    def unanswered(self) -> str | None:
        """Return the last request if it has no answer, and end a line that was cut off."""
        size = os.fstat(self.file).st_size
        tail = os.pread(self.file, TAIL, max(0, size - TAIL))
        if tail and not tail.endswith(b"\n"):
            os.write(self.file, b"\n")
        for line in reversed(tail.split(b"\n")[:-1]):
            with contextlib.suppress(orjson.JSONDecodeError):
                event = orjson.loads(line)
                return None if "answer" in event else event["request"]
        return None


class Client:
    """One process that runs transactions until it is told to stop, or is killed."""

    def __init__(self, store: Store, journal: Journal, session: int, generator: random.Random, shared: Shared) -> None:
        self.store, self.journal, self.session, self.generator, self.shared = store, journal, session, generator, shared
        self.value = session * VALUES_PER_SESSION
        self.operations: list[Operation] = []
        self.lists: dict[str, tuple[int, ...]] = {}  # as the transaction at hand knows them
        self.oversleeps = False  # whether it goes on after its time-out, as a client that was away does

    def run(self, number: int) -> None:
        ask_for_the_dead(self.store, self.journal)
        while not self.shared.stop.value:
            self.transact()
            self.shared.done[number] += 1

    def transact(self) -> None:
        chance = self.generator.random()
        kind = "blind" if chance < 0.2 else "reads" if chance < 0.4 else "writes"
        long = kind != "blind" and self.generator.random() < 0.12
        self.oversleeps = long and self.generator.random() < 0.15
        timeout = SHORT_TIMEOUT if self.oversleeps else self.generator.choice(TIMEOUTS)
        self.operations, self.lists = [], {}
        event: dict[str, object] = {"session": self.session, "begin": time.monotonic_ns()}
        sent = False
        try:
            with self.store.transaction(long=long, timeout=timeout) as tx:
                event["request"] = tx.request.hex
                if kind == "blind":
                    self.overwrite_marks(tx)
                else:
                    self.work(tx, long=long, writes=kind == "writes")
                    event["id"] = tx.id
                if self.generator.random() < 0.03:
                    raise GivenUp
                if kind != "reads":
                    self.journal.write(**event, operations=self.encoded())
                    sent = True
            answer = "committed"
        except CommitOutcomeUnknown:
            answer = "unknown"
        except (GivenUp, TransactionError, StoreError):
            answer = "refused"
        if answer == "unknown":
            ask_for_the_dead(self.store, self.journal)
        elif sent:
            self.journal.write(request=event["request"], answer=answer, end=time.monotonic_ns())
        elif "request" in event:
            self.journal.write(**event, operations=self.encoded(), answer=answer, end=time.monotonic_ns())

    def read_everything(self) -> None:
        """Read all lists and registers there are in one transaction."""
        event: dict[str, object] = {"session": self.session, "begin": time.monotonic_ns()}
        self.operations = []
        with self.store.transaction(timeout=600) as tx:
            for slot in range(SLOTS):
                table = Place(slot, 0).table
                self.read_many(tx, table, [Place(slot, g) for g in range(self.shared.generations[slot] + 1)])
            for mark in range(MARKS):
                self.read_mark(tx, mark)
            event |= {"request": tx.request.hex, "id": tx.id}
        self.journal.write(**event, operations=self.encoded(), answer="committed", end=time.monotonic_ns())

    def encoded(self) -> list[tuple[object, ...]]:
        return [(LETTERS[type(o)], *o) for o in self.operations]

    def next_value(self) -> int:
        self.value += 1
        return self.value

    def pause(self) -> None:
        chance = self.generator.random()
        if chance < 0.2:
            time.sleep(self.generator.uniform(0, 0.003))
        elif chance > 0.995:
            time.sleep(self.generator.uniform(0, 0.3))

    def overwrite_marks(self, tx: TransactionContext) -> None:
        """Write registers without reading anything: a transaction that starts at its commit."""
        for mark in self.generator.sample(range(MARKS), self.generator.randint(1, 3)):
            self.overwrite(tx, mark)

    def overwrite(self, tx: TransactionContext, mark: int) -> None:
        value = self.next_value()
        tx.table("marks").set(f"m{mark}", "v", b"%d" % value)
        self.operations.append(Write(f"m{mark}", value))

    def read_mark(self, tx: TransactionContext, mark: int) -> None:
        found = tx.table("marks").get(f"m{mark}", "v")
        self.operations.append(Read(f"m{mark}", None if found is None else int(found)))

    def work(self, tx: TransactionContext, *, long: bool, writes: bool) -> None:
        slots = self.generator.sample(range(SLOTS), self.generator.randint(1, 4))
        if self.generator.random() < 0.3:
            self.read_together(tx, slots)
        if self.oversleeps:
            slots = list({self.generator.choice(QUIET), *slots})
        for slot in slots:
            self.pause()
            place = self.read_current(tx, slot)
            if writes and self.generator.random() < 0.7 and (self.oversleeps or slot not in QUIET):
                self.append(tx, place)
                if long and self.generator.random() < 0.5:
                    tx.flush()
                if self.oversleeps:
                    time.sleep(SHORT_TIMEOUT * self.generator.uniform(0.8, 2.5))
                    if self.generator.random() < 0.5:
                        self.read(tx, place)
            if self.generator.random() < 0.2:
                self.read_mark(tx, self.generator.randrange(MARKS))
            if writes and self.generator.random() < 0.1:
                self.overwrite(tx, self.generator.randrange(MARKS))
        if self.generator.random() < 0.3:
            self.pause()
            self.read_together(tx, slots)

    def read_current(self, tx: TransactionContext, slot: int) -> Place:
        """Read the list of a slot that is in use."""
        while True:
            place = Place(slot, int(self.shared.generations[slot]))
            self.read(tx, place)
            if len(self.lists[place.key]) < LIST_LENGTH:
                return place
            self.shared.generations[slot] = place.generation + 1

    def read(self, tx: TransactionContext, place: Place) -> None:
        self.note_list(place, tx.table(place.table).get(place.row, place.column))

    def read_together(self, tx: TransactionContext, slots: Sequence[int]) -> None:
        """Read many lists in one call."""
        places = [Place(slot, int(self.shared.generations[slot])) for slot in slots]
        table = self.generator.choice(("rows", "cells"))
        self.read_many(tx, table, [place for place in places if place.table == table])

    def read_many(self, tx: TransactionContext, table: str, places: Sequence[Place]) -> None:
        found: dict[tuple[bytes, bytes], bytes] = {}
        if self.generator.random() < 0.5:
            found = tx.table(table).get_many((place.row, place.column) for place in places)
        else:
            for row in sorted({place.row for place in places}):
                columns = [place.column for place in places if place.row == row]
                found |= {(r, c): v for r, c, v in tx.table(table).scan(row, row + b"\x00", columns=columns)}
        for place in places:
            self.note_list(place, found.get((place.row, place.column)))

    def note_list(self, place: Place, cell: bytes | None) -> None:
        self.lists[place.key] = tuple(map(int, (cell or b"").split()))
        self.operations.append(ReadList(place.key, self.lists[place.key]))

    def append(self, tx: TransactionContext, place: Place) -> None:
        value = self.next_value()
        self.lists[place.key] += (value,)
        tx.table(place.table).set(place.row, place.column, " ".join(map(str, self.lists[place.key])).encode())
        self.operations.append(Append(place.key, value))


@dataclass(frozen=True)
class Place:
    """Where a list stands."""

    slot: int
    generation: int

    @property
    def table(self) -> str:
        return "cells" if self.slot % 2 else "rows"

    @property
    def row(self) -> bytes:
        return b"all" if self.slot % 2 else b"%d" % self.slot

    @property
    def column(self) -> bytes:
        return b"%d-%d" % (self.slot, self.generation)

    @property
    def key(self) -> str:
        return f"l{self.slot}-{self.generation}"


def ask_for_the_dead(store: Store, journal: Journal) -> None:
    """Learn what became of the last request of a client that did not live to see the answer."""
    limit = time.monotonic() + 60
    request = journal.unanswered()
    while request is not None:
        try:
            outcome = store.outcome(request)
        except StoreError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)
        else:
            journal.write(request=request, answer=outcome.status, end=time.monotonic_ns())
            return


def run_client(url: str, path: Path, number: int, session: int, seed: int, shared: Shared, cuts: bool) -> None:
    """Be a client; the target of a process."""
    generator = random.Random(seed)
    if cuts:
        threading.Thread(target=cut_connections, args=(random.Random(generator.random()),), daemon=True).start()
    with Store.open(url, clock=shared.clock) as store:
        Client(store, Journal(path), session, generator, shared).run(number)


def cut_connections(generator: random.Random) -> None:
    """Cut this process's connections now and then: a server that is committing goes on, and its answer is lost."""
    while True:
        time.sleep(generator.uniform(0, 1))
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(fd.readlink()).startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(fd.name))) as connection:
                        if connection.family in (socket.AF_INET, socket.AF_INET6):
                            connection.shutdown(socket.SHUT_RDWR)


def run_janitor(url: str, shared: Shared) -> None:
    """Sweep and prune all the time; the target of a process."""
    with Store.open(url, clock=shared.clock) as store:
        while not shared.stop.value:
            with contextlib.suppress(ExportQueueError):
                sweep(store.database)
                time.sleep(0.05)  # what was swept stays invalid for a while
                shared.pruned.value += prune(store.database)


@dataclass(frozen=True)
class Told:
    """A transaction as its client has it, and the request whose outcome the store knows."""

    request: str
    transaction: HistoryTransaction


def read_journals(paths: Sequence[Path]) -> Iterator[Told]:
    """Read what the clients noted; each file has its transactions in their order."""
    for path in paths:
        pending: dict[str, Any] | None = None
        with path.open("rb") as lines:
            for line in lines:
                try:
                    event = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # its client was killed in the middle of it
                if "operations" in event:
                    assert pending is None, f"{path} goes on without the answer to {pending}"
                    pending = event
                if pending is not None and "answer" in event:
                    assert pending["request"] == event["request"]
                    yield told({**pending, **event})
                    pending = None
        if pending is not None:
            yield told({**pending, "answer": "unknown", "end": None})


def told(event: dict[str, Any]) -> Told:
    operations = [
        KINDS[letter](key, tuple(value) if letter == "L" else value) for letter, key, value in event["operations"]
    ]
    transaction = HistoryTransaction(
        session=str(event["session"]),
        operations=operations,
        status=STATUSES[event["answer"]],
        id=event.get("id"),
        begin=event["begin"],
        end=event["end"],
    )
    return Told(event["request"], transaction)
