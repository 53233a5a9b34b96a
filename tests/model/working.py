"""What is done in one transaction, and in its model."""

from __future__ import annotations

import math
from typing import Any

from tests.model.crashing import CrashingMachine
from tests.model.expected import WEAK, Cell, Tx
from tests.support.contexts import opened_by

from export_queue import ExportQueueError, Level, RegistrationLost, SnapshotTooOld, TransactionContext
from export_queue.core.store import Span
from export_queue.core.store.queries import cleanup
from export_queue.core.transactions import scan_cells


class WorkingMachine(CrashingMachine):
    """Does the work of :data:`tests.model.choices.WORK`, and compares what is read."""

    def do(self, tx: Tx, context: TransactionContext, work: list[Any]) -> bool:
        """Do some work; False if the transaction has found that it cannot go on."""
        for name, *arguments in work:
            if tx.kind == "read" and name in ("set", "delete", "delete_row", "add", "notify", "id"):
                continue
            try:
                getattr(self, f"do_{name}")(tx, context, *arguments)
            except (SnapshotTooOld, RegistrationLost) as error:
                self.sync(tx, opened_by(context))
                self.may_fail(tx, error)
                return False
            self.sync(tx, opened_by(context))
        return True

    def may_fail(self, tx: Tx, error: ExportQueueError) -> None:
        if isinstance(error, SnapshotTooOld):
            # Never of one that a row registers: see differences().
            assert tx.low < self.horizon() or (tx.aged_from_ms or math.inf) < self.expiry_ms()
        else:
            assert tx.kind == "long"
            assert not self.model.is_registered(tx)

    def horizon(self) -> int:
        with self.watch.database.read() as work:
            return cleanup.horizon(work)

    def do_id(self, tx: Tx, context: TransactionContext) -> None:
        assert context.id == opened_by(context)._id

    def do_level(self, tx: Tx, context: TransactionContext, level: Level) -> None:
        context.level = tx.level = level

    def do_get(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        found = context.table(cell[0]).get(*cell[1:])
        self.sync(tx, opened_by(context))
        assert found == self.model.value_of(tx, cell), cell

    def do_get_many(self, tx: Tx, context: TransactionContext, table: str, wanted: list[tuple[bytes, bytes]]) -> None:
        found = context.table(table).get_many(wanted)
        self.sync(tx, opened_by(context))
        expected = {place: self.model.value_of(tx, (table, *place)) for place in wanted}
        assert found == {place: value for place, value in expected.items() if value is not None}

    def do_scan(
        self, tx: Tx, context: TransactionContext, table: str, span: dict[str, Any], page: int, cleans: bool
    ) -> None:
        found = list(context.table(table).scan(**span))
        self.sync(tx, opened_by(context))
        wanted = [
            (row, column, value)
            for row, column, value in self.model.scan(tx, table)
            if row.startswith(span.get("prefix", b""))
            and row >= span.get("start", b"")
            and row < span.get("stop", b"z")
            and column in span.get("columns", [column])
        ]
        assert found == wanted[: span.get("limit")]
        options = context.table(table)._options
        paged = []
        for cell in scan_cells(opened_by(context), options.number, Span(), page=page, ttl_ms=options.ttl_ms):
            paged.append(cell)
            if cleans and not any(process.life.is_cut for process in self.processes):  # the cut is for their sessions
                self.clean_up(self.watch)
        assert paged == list(self.model.scan(tx, table))

    def do_versions(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        found = context.table(cell[0]).versions(*cell[1:])
        self.sync(tx, opened_by(context))
        while found and found[-1] is None:
            found.pop()
        assert found == self.model.versions_of(tx, cell), cell

    def do_set(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        self.written += 1
        value = b"" if self.written % 7 == 0 else b"%d" % self.written
        context.table(cell[0]).set(*cell[1:], value)
        self.model.set(tx, cell, value)

    def do_delete(self, tx: Tx, context: TransactionContext, cell: Cell) -> None:
        context.table(cell[0]).delete(*cell[1:])
        self.model.set(tx, cell, None)

    def do_delete_row(self, tx: Tx, context: TransactionContext, table: str, row: bytes) -> None:
        context.table(table).delete_row(row)
        self.sync(tx, opened_by(context))
        for found, column, _ in list(self.model.scan(tx, table)):
            if found == row:
                self.model.set(tx, (table, row, column), None)

    def do_add(self, tx: Tx, context: TransactionContext, key: str, exclusive: bool, is_gone: bool) -> None:
        self.written += 1
        context.queue("q").add(key, None if is_gone else self.written, exclusive=exclusive, replace=True)
        self.model.add(tx, key.encode(), None if is_gone else b"%d" % self.written, exclusive=exclusive)

    def do_notify(self, tx: Tx, context: TransactionContext, row: bytes) -> None:
        context.table(WEAK[0]).notify(row, WEAK[1])
        tx.writes_to.notifications.add((WEAK[0], row, WEAK[1]))
