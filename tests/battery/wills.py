"""Long transactions that one process begins and another ends."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from tests.battery.journals import Journal
from tests.battery.shared import Place, Shared
from tests.support.contexts import context_of

from export_queue import Store, StoreError, Transaction, TransactionContext, TransactionError
from export_queue.core.store import schema
from export_queue.core.transactions import OpenTransaction


def leave_will(shared: Shared, client: int, transaction: Mapping[str, Any], lists: Mapping[str, Sequence[int]]) -> int:
    """Let another process end a transaction; returns what ``shared.executed`` will say then."""
    number = time.monotonic_ns()
    will = {"client": client, "number": number, "transaction": transaction, "lists": lists}
    (shared.folder / "taken" / f"new-{client}").write_bytes(orjson.dumps(will))
    (shared.folder / "taken" / f"new-{client}").rename(shared.folder / "wills" / f"{client}-{number}")
    return number


class Heir:
    """Executes the wills that it finds."""

    def __init__(self, store: Store, journal: Journal, generator: random.Random, shared: Shared) -> None:
        self.store, self.journal, self.generator, self.shared = store, journal, generator, shared

    def execute_all(self) -> None:
        for path in list((self.shared.folder / "wills").iterdir()):
            taken = self.shared.folder / "taken" / f"{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):  # another heir was quicker
                path.rename(taken)
                self.execute(orjson.loads(taken.read_bytes()))

    def execute(self, will: dict[str, Any]) -> None:
        opened = OpenTransaction.resume(self.store.database, Transaction.from_json(will["transaction"]))
        try:
            self.read(context_of(self.store, opened), will["lists"])
            match self.generator.choice(("commit", "commit", "abort", "abort", "leave it")):
                case "commit":
                    opened.commit()
                case "abort":
                    opened.abort()
        except (TransactionError, StoreError):
            pass  # its client or clean-up ended it first, or the connection broke
        if not self.is_active(int(will["transaction"]["id"])):
            self.shared.executed[will["client"]] = will["number"]

    def read(self, tx: TransactionContext, lists: dict[str, list[int]]) -> None:
        """See that all is there that the transaction has read and staged in the other process."""
        for key, values in lists.items():
            slot, generation = map(int, key[1:].split("-"))
            place = Place(slot, generation)
            found = [int(v) for v in tx.table(place.table).get(place.row, place.column, b"").split()]
            if found != values:
                self.journal.write(failure=f"transaction {tx.id} was resumed: expected {key} {values}, found {found}")

    def is_active(self, number: int) -> bool:
        statement = sa.select(schema.active.c.id).where(schema.active.c.id == number)
        try:
            with self.store.database.read() as work:
                return work.connection.execute(statement).first() is not None
        except StoreError:
            return True
