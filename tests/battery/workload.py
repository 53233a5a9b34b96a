"""A workload whose journals are a history that can be checked: lists, registers, a bank, many processes.

Clients append unique numbers to lists (cells that they read and write back with one number more), overwrite registers
blindly, move money between accounts whose total never changes, add entries and set notifications. Each notes what it
did in a file of its own: the operations and the request before the commit is sent, the answer after it. A client that
takes the place of a dead one first asks what became of its last request.

Some long transactions are ended by others: their clients stay away past the time-out, or leave a will, which another
process executes by committing or aborting. They go on all the same, and must not get far.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from typing import Literal

from tests.battery.connections import Cutter
from tests.battery.journals import ENTRY, LETTERS, NOTE, Journal, ask_for_the_dead
from tests.battery.shared import ACCOUNTS, MARKS, QUEUE, QUIET, SLOTS, STAGES, TOTAL, Place, Shared
from tests.battery.wills import leave_will
from tests.support.histories import Append, Operation, Read, ReadList, Write

from export_queue import (
    CommitOutcomeUnknown,
    RegistrationLost,
    Store,
    StoreError,
    TransactionContext,
    TransactionError,
    TransactionTimeout,
)

LIST_LENGTH = 16
"""A longer list is left for the next one of its slot: reading whole lists would take ever longer."""
SHORT_TIMEOUT, TIMEOUTS = 0.08, (0.3, 2.0, 2.0, 5.0)
VALUES_PER_SESSION = 1_000_000
HEIR_SECONDS = 1.0

Fate = Literal["", "oversleeps", "leaves a will"]


class GivenUp(Exception):
    """A client thinks better of it."""


class Client:
    """One process that runs transactions until it is told to stop, or is killed."""

    def __init__(
        self, store: Store, journal: Journal, number: int, session: int, generator: random.Random, shared: Shared
    ) -> None:
        self.store, self.journal, self.number, self.session = store, journal, number, session
        self.generator, self.shared = generator, shared
        self.cutter = Cutter()
        self.value = session * VALUES_PER_SESSION
        self.operations: list[Operation] = []
        self.extras: list[tuple[str, str, None]] = []  # entries and notifications
        self.lists: dict[str, tuple[int, ...]] = {}  # as the transaction at hand knows them
        self.fate: Fate = ""
        self.stage = ""

    def run(self) -> None:
        ask_for_the_dead(self.store, self.journal)
        while not self.shared.stop.value:
            self.transact()
            self.shared.done[self.number] += 1

    def chance(self, probability: float) -> bool:
        return self.generator.random() < probability

    # --- one transaction --------------------------------------------------------------------------------------------

    def transact(self) -> None:
        kind = self.generator.choices(("blind", "reads", "writes"), (20, 20, 60))[0]
        long = kind != "blind" and self.chance(0.2)
        fates: tuple[Fate, ...] = ("", "oversleeps", "leaves a will")
        self.fate = self.generator.choices(fates, (60, 20, 20))[0] if long and kind == "writes" else ""
        timeout = SHORT_TIMEOUT if self.fate == "oversleeps" else self.generator.choice(TIMEOUTS)
        self.operations, self.extras, self.lists, self.stage = [], [], {}, "reading"
        event: dict[str, object] = {"session": self.session, "begin": time.monotonic_ns()}
        sent = False
        try:
            with self.store.transaction(long=long, timeout=timeout) as tx:
                event["request"] = tx.request.hex
                if kind == "blind":
                    self.overwrite_marks(tx)
                    self.add(tx)
                else:
                    if self.chance(0.1):  # an id that is registered before the snapshot, or behind it
                        event["id"] = tx.id
                    self.work(tx, long=long, writes=kind == "writes")
                    if long or self.chance(0.2):
                        event["id"] = tx.id
                if self.fate == "leaves a will":
                    self.stage = "staging"
                    will = tx.to_json()
                    self.note(event)
                    sent = True
                    self.outlive(tx, leave_will(self.shared, self.number, will, self.lists))
                elif self.chance(0.03):
                    raise GivenUp
                elif kind != "reads":
                    self.note(event)
                    sent = True
                self.stage = "committing"
                if self.chance(0.03):
                    self.cutter.cut_after(self.generator.uniform(0, 0.006))
            answer = "committed"
        except CommitOutcomeUnknown:
            answer = "unknown"
        except (GivenUp, TransactionError, StoreError) as error:
            answer = "refused"
            self.count(error)
        if sent and self.fate == "leaves a will":
            self.journal.write(request=event["request"], more=self.encoded())
        if sent and (answer == "unknown" or (self.fate == "leaves a will" and answer == "refused")):
            ask_for_the_dead(self.store, self.journal)  # the heir may have committed
        elif sent:
            self.journal.write(request=event["request"], answer=answer, end=time.monotonic_ns())
        elif "request" in event and answer != "unknown":
            self.note(event, answer=answer, end=time.monotonic_ns())

    def note(self, event: dict[str, object], **more: object) -> None:
        self.journal.write(**event, operations=self.encoded(), **more)
        self.operations, self.extras = [], []

    def encoded(self) -> list[tuple[object, ...]]:
        return [*((LETTERS[type(o)], *o) for o in self.operations), *self.extras]

    def count(self, error: Exception) -> None:
        if isinstance(error, (RegistrationLost, TransactionTimeout)):
            self.shared.ended_late[self.number * len(STAGES) + STAGES.index(self.stage)] += 1

    def read_everything(self) -> None:
        """Read all lists and registers there are in one transaction."""
        event: dict[str, object] = {"session": self.session, "begin": time.monotonic_ns()}
        self.operations = []
        with self.store.transaction(timeout=600) as tx:
            for slot in range(SLOTS):
                places = [Place(slot, g) for g in range(self.shared.generations[slot] + 1)]
                self.note_lists(places, tx.table(places[0].table).get_many((p.row, p.column) for p in places))
            for mark in range(MARKS):
                self.read_mark(tx, mark)
            self.audit(tx)
            event |= {"request": tx.request.hex, "id": tx.id}
        self.note(event, answer="committed", end=time.monotonic_ns())

    # --- what is done in it -----------------------------------------------------------------------------------------

    def work(self, tx: TransactionContext, *, long: bool, writes: bool) -> None:
        slots = self.generator.sample(range(SLOTS), self.generator.randint(1, 3))
        if self.chance(0.2):
            self.read_together(tx, slots)
        if self.fate:
            slots = list({self.generator.choice(QUIET), *slots})
        for slot in slots:
            self.pause()
            place = self.read_current(tx, slot)
            if writes and self.chance(0.7) and (self.fate or slot not in QUIET):
                self.append(tx, place)
                if long:
                    self.stage_some(tx, place)
            if self.chance(0.2):
                mark = self.generator.randrange(MARKS)
                self.read_mark(tx, mark)
                if writes and self.chance(0.7):
                    self.pause()
                    self.overwrite(tx, mark)
            if writes and self.chance(0.05):
                self.overwrite(tx, self.generator.randrange(MARKS))
        if self.chance(0.15):
            self.audit(tx)
        if writes and self.chance(0.15):
            self.transfer(tx)
            if long and self.chance(0.5):
                tx.flush()
            if self.chance(0.3):
                self.audit(tx)
        if writes and self.chance(0.3):
            self.add(tx)
        if self.chance(0.2):
            self.pause()
            self.read_together(tx, slots)

    def stage_some(self, tx: TransactionContext, place: Place) -> None:
        """Stage what was written, in long transactions; after a sleep it may have been cleaned up."""
        if self.chance(0.5):
            self.stage = "staging"
            tx.flush()
            self.stage = "reading"
        if self.fate == "oversleeps":
            self.sleep(SHORT_TIMEOUT * self.generator.uniform(0.5, 2.5))
            if self.chance(0.5):
                self.read(tx, place)

    def pause(self) -> None:
        if self.chance(0.2):
            time.sleep(self.generator.uniform(0, 0.003))
        elif self.chance(0.003):
            time.sleep(self.generator.uniform(0, 0.3))

    def sleep(self, seconds: float) -> None:
        """Stay away: asleep, or stopped until the supervisor sees the time."""
        if self.chance(0.5):
            time.sleep(seconds)
            return
        self.shared.asleep_until[self.number] = time.monotonic_ns() + int(seconds * 1e9)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.shared.asleep_until[self.number] = 0

    def outlive(self, tx: TransactionContext, will: int) -> None:
        """Go on after another process may have ended the transaction: read, and where that is certain, write."""
        end = time.monotonic() + (HEIR_SECONDS if self.chance(0.7) else 0)
        while self.shared.executed[self.number] != will and time.monotonic() < end:
            time.sleep(0.002)
        ended = self.shared.executed[self.number] == will
        for _ in range(self.generator.randint(1, 4)):
            act = self.generator.choice((self.read_own, self.audit, self.write_late))
            if act == self.write_late and not ended:
                continue
            self.stage = "staging" if act == self.write_late else "reading"
            try:
                act(tx)
            except TransactionError as error:
                self.count(error)
                ended = True
                continue
            except StoreError:
                continue
            if ended:
                self.fail(f"transaction {tx.id} had been ended and went on {act.__name__}")

    def read_own(self, tx: TransactionContext) -> None:
        key = self.generator.choice(list(self.lists))
        slot, generation = map(int, key[1:].split("-"))
        place = Place(slot, generation)
        self.generator.choice((lambda: self.read(tx, place), lambda: self.read_many(tx, place.table, [place])))()

    def write_late(self, tx: TransactionContext) -> None:
        """Write what no journal holds, so that whoever reads it reads what nobody wrote."""
        tx.table("marks").set(f"m{self.generator.randrange(MARKS)}", "v", b"%d" % self.next_value())
        tx.table("noted").set(f"late-{self.next_value()}", "n", b"")
        tx.queue(QUEUE).add(f"late-{self.next_value()}", None)
        tx.flush()

    def fail(self, text: str) -> None:
        self.journal.write(failure=text)

    # --- single operations ------------------------------------------------------------------------------------------

    def next_value(self) -> int:
        self.value += 1
        return self.value

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

    def add(self, tx: TransactionContext) -> None:
        """Add an entry, or set a notification."""
        what, value = self.generator.choice((ENTRY, NOTE)), str(self.next_value())
        if what == ENTRY:
            tx.queue(QUEUE).add(value, None)
        else:
            tx.table("noted").set(value, "n", b"")
        self.extras.append((what, value, None))

    def balances(self, tx: TransactionContext, accounts: Sequence[int]) -> dict[int, int]:
        """Read accounts in one of three ways; an empty one is not there."""
        table, rows = tx.table("bank"), [b"a%d" % account for account in accounts]
        how = self.generator.choice(("get", "get_many", "scan"))
        if how == "get":
            found = {row: table.get(row, "balance", b"0") for row in rows}
        elif how == "get_many":
            found = {row: value for (row, _), value in table.get_many((row, "balance") for row in rows).items()}
        else:
            found = {}
            for row, _, value in table.scan():
                found[row] = value
                self.pause()
        return {account: int(found.get(row) or 0) for account, row in zip(accounts, rows, strict=True)}

    def audit(self, tx: TransactionContext) -> None:
        total = sum(self.balances(tx, range(ACCOUNTS)).values())
        if total != TOTAL:
            self.fail(f"transaction {tx.id} found {total} in all accounts instead of {TOTAL}")

    def transfer(self, tx: TransactionContext) -> None:
        accounts = self.generator.sample(range(ACCOUNTS), 2)
        found = self.balances(tx, accounts)
        amount = found[accounts[0]] if self.chance(0.5) else self.generator.randint(1, 9)
        for account, change in zip(accounts, (-amount, amount), strict=True):
            if balance := found[account] + change:
                tx.table("bank").set(f"a{account}", "balance", b"%d" % balance)
            else:
                tx.table("bank").delete(f"a{account}", "balance")

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
        if self.chance(0.5):
            found = tx.table(table).get_many((place.row, place.column) for place in places)
        else:
            for row in sorted({place.row for place in places}):
                found |= {(r, c): v for r, c, v in tx.table(table).scan(row, row + b"\x00")}
        self.note_lists(places, found)

    def note_lists(self, places: Sequence[Place], found: dict[tuple[bytes, bytes], bytes]) -> None:
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
