"""The SQL sink: a table per collection, a rank and a tombstone mark in each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from export_queue.core.errors import SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.sinks.batch import (
    Reasons,
    apply_batch,
    isolate,
    refuse_collections,
    refuse_seqs,
    refuse_ttls,
    retarget,
)
from export_queue.core.sinks.control import check_owner, stale_rank
from export_queue.core.sinks.guards import Claim, ClaimedSink, Guard, check_guard, unclaimed_error
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection, StoredRecords, joined_records
from export_queue.core.sinks.sql import pointing, scanning
from export_queue.core.sinks.sql.control_tables import check_queue, held_floor, raise_floor, read_floor, read_queue
from export_queue.core.sinks.sql.database import Database
from export_queue.core.sinks.sql.dialects import KEPT_OUT, Password, Poison, SchemaChanged, open_dialect
from export_queue.core.sinks.sql.fitting import measured
from export_queue.core.sinks.sql.marks import check_mark, found_mark, note_rows, read_record
from export_queue.core.sinks.sql.prepared_tables import Layout, PreparedTables, script
from export_queue.core.sinks.sql.rows import Rows, rows_of
from export_queue.core.sinks.sql.sweep import sweep_table, tables_of
from export_queue.core.sinks.sql.tables import Contents, Key, Table, check_template, split_schema
from export_queue.core.sinks.sql.unit_fences import claim_units, write_under

_WriteRows = Callable[[Connection, Table, Rows], int]
"""Writes rows in an open transaction, and returns how many it has written."""


class SqlSink:
    """Tables of a database.

    A table has the record's key, the document's column or columns, ``_rank`` and ``_deleted``. A deleted record remains
    as a row without a document; the view ``<table>_live`` hides such rows. With ``guard="fence"`` a table has neither
    ``_rank`` nor ``_deleted`` nor a view, and the rows of deleted records are removed.

    :param url: SQLAlchemy's URL, such as ``sqlite:///path``, ``postgresql://user@host/database``,
        ``mysql://user@host/database``; other databases are written to with portable statements.
    :param password: the password, or a callable that returns it, called for each new connection.
    :param table: template of the table names, from ``$collection``; a schema may precede it, ``sales.$collection``.
    :param key: the columns of the primary key: a name, several, or names and types (``text``, ``integer``,
        ``uuid``, ``date``). With several, ids are JSON arrays of their values.
    :param columns: fields of the document that become columns: names, or names and types (``text``,
        ``integer``, ``real``, ``numeric``, ``boolean``, ``json``, ``timestamp``). Other fields are dropped.
    :param document: the one column of the document if ``columns`` is not given: its type, ``text`` or ``json``, or its
        name and type.
    :param create_tables: whether missing tables, views and control tables are created.
    :param timeout: seconds to wait for locks and for an answer.
    :param guard: what keeps late deliveries out: ``seq``, the rank of each row, or ``fence``, the fence of the drain.
    :raises SinkConfigurationError: an option is not valid.
    """

    def __init__(
        self,
        url: str,
        password: Password = None,
        table: str = "$collection",
        key: str | Sequence[str] | Mapping[str, str] = "id",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        document: str | Mapping[str, str] = "text",
        create_tables: bool = True,
        timeout: float = 60.0,
        guard: Guard = "seq",
    ) -> None:
        check_guard(guard)
        if not isinstance(table, str):
            raise SinkConfigurationError(
                f"table: expected a template such as $collection, found {table!r}",
                hint="where a DAG renders templates as native objects, digits alone become a number: give the name a"
                " prefix, or the schema before it",
            )
        for name, given in (("key", key), ("columns", columns)):
            if not (given is None or isinstance(given, str | Sequence | Mapping)):
                raise SinkConfigurationError(f"{name}: expected names, or names and types, found {given!r}")
        schema, template = split_schema(table)
        key_columns = Key.of(key)
        self._layout = Layout(
            schema=schema,
            template=check_template(template),
            key=key_columns,
            contents=Contents.of(columns, document, key_columns),
            is_fenced=guard == "fence",
        )
        self._database = Database(open_dialect(url, password, timeout))
        self._prepared = PreparedTables(self._database, self._layout, may_create=create_tables)
        self._found: dict[str, Table] = {}
        """The tables that were described to be compared."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._database.dialect.capabilities, fenced=self._layout.is_fenced)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        ask, schema = self._database.ask, self._layout.schema
        owner: dict[str, Any] = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "shown": shown}
        owner["sink"] = str(self)
        self._prepared.start_drain(queue_id)
        if shown or readmit:  # create nothing if all data is lost, and forget nothing for a store that is refused
            check_owner(ask(read_queue, schema=schema, queue_id=queue_id), **owner)
        self._prepared.prepare_control(readmit=readmit)
        if readmit:
            self._prepared.forget_lost(fence)
        else:
            self._prepared.prove_first(queue_id)
        ask(check_queue, schema=schema, readmit=readmit, locks_reads=self._database.dialect.locks_reads, **owner)
        if readmit:
            self._prepared.prove_first(queue_id)

    def binding(self) -> Mapping[str, Any]:
        layout = self._layout
        found = {column.name: column.type for column in layout.contents.columns}
        return {
            "kind": "sql",
            "table": (f"{layout.schema.replace('$', '$$')}." if layout.schema else "") + layout.template,
            "key": {column.name: column.type for column in layout.key.columns},
            "columns": None if layout.contents.whole else dict(sorted(found.items())),
            "document": found if layout.contents.whole else "text",
            "guard": "fence" if layout.is_fenced else "seq",
        }

    def continue_drain(self, queue_id: str) -> None:
        self._prepared.queue_id = queue_id

    def apply(self, operations: Operations) -> ApplyResult:
        if self._layout.is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, self._upsert)

    def repair(self, operations: Operations) -> ApplyResult:
        if self._layout.is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, partial(self._upsert, repairs=True))

    def claim(self, claims: Sequence[Claim]) -> Sequence[ClaimedSink]:
        self._database.ask(claim_units, self._layout.schema, claims, self)
        return [self.under(claim) for claim in claims]

    def under(self, claim: Claim) -> ClaimedSink:
        write_rows = partial(write_under, dialect=self._database.dialect, claim=claim, sink=self)
        return ClaimedSink(self, partial(self._apply, write_rows=write_rows))

    def sweep(self, *, store_id: str, floor: int) -> int:
        self._prepared.prepare_control()
        ask, layout = self._database.ask, self._layout
        raised = ask(raise_floor, schema=layout.schema, store_id=store_id, floor=floor, sink=str(self))
        keys = [column.name for column in layout.key.columns]
        removed = 0
        for name in ask(tables_of, schema=layout.schema, template=layout.template, keys=keys):
            removed_here = sweep_table(ask, schema=layout.schema, name=name, keys=keys, floor=raised)
            record = ask(read_record, layout.schema, name)
            if removed_here and record is not None and not record.mark:
                ask(note_rows, layout.table(name), deleted=True)
            removed += removed_here
        return removed

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        tables, _ = self._prepared.of_collections(set(operations.collections))
        reasons: Reasons = {}
        refuse_seqs(operations, reasons)
        refuse_ttls(operations, reasons, taken=False)
        taken = [i for i, name in enumerate(operations.collections) if name in tables and i not in reasons]
        targeted, found, positions = retarget(operations.take(taken), tables), list[StoredRecords](), list[int]()
        for name, own in _by_table(targeted.collections).items() if taken else ():
            table, limits = self._described(name), self._database.dialect.limits
            rows, _ = rows_of(targeted.take(own), table.contents, limits, self._layout.key)
            found.append(scanning.rendered(table, rows))
            positions += [taken[own[i]] for i in rows.positions]
        return joined_records(found), positions

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        tables, _ = self._prepared.of_collections(collections)
        for name in sorted(set(tables.values())):
            if self._database.ask(scanning.exists, self._layout.table(name)):
                yield from scanning.scan_table(self._database.ask, self._described(name))

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        keys = [self._layout.key.values(record) for record in ids]
        table, found = self._described(target), dict[bytes, tuple[int, bytes | None]]()
        if self._database.ask(scanning.exists, table):
            records = scanning.look_up(self._database.ask, table, keys)
            found = dict(zip(records.ids, zip(records.ranks, records.documents, strict=True), strict=True))
        ranks, documents = ([found.get(record, (-1, None))[n] for record in ids] for n in range(2))
        return StoredRecords([target] * len(ids), ids, ranks, documents)  # type: ignore[arg-type]

    def floor_of(self, target: str) -> int:
        return self._database.ask(read_floor, schema=self._layout.schema)

    def target(self, collection: str) -> str:
        return self._prepared.of(collection).name

    def pointed_at(self, pointer: str) -> str | None:
        return self._database.ask(pointing.pointed_at, pointer)

    def point(self, pointers: Mapping[str, str]) -> None:
        tables = {pointer: self._prepared.prepare(self.target(one)) for pointer, one in pointers.items()}
        self._prepared.change_ddl(partial(pointing.point, dialect=self._database.dialect, pointers=tables))

    def _described(self, name: str) -> Table:
        """Describe a table as it is in the database, or as it would be created; nothing is created."""
        if name not in self._found:
            table = self._layout.table(name)
            is_found = self._database.ask(scanning.exists, table)
            self._found[name] = self._database.ask(measured, table) if is_found else table
        return self._found[name]

    def create(self, collection: str) -> None:
        """Create the table of a collection and its view, if they do not exist."""
        self._prepared.prepare(self._prepared.of(collection).name)

    def ddl(self, *collections: str) -> str:
        return script(self._prepared.ddl([self._prepared.of(collection) for collection in collections]))

    def run_ddl(self, *collections: str) -> str:
        printed = self.ddl(*collections)
        self._prepared.run_ddl([self._prepared.of(collection) for collection in collections])
        return printed

    def probe(self) -> str:
        version = self._database.ask(lambda connection: connection.dialect.server_version_info or ())
        return f"{self}, version {'.'.join(map(str, version))}"

    def close(self) -> None:
        self._database.close()

    def _apply(self, operations: Operations, write_rows: _WriteRows) -> ApplyResult:
        tables, refused = self._prepared.of_collections(set(operations.collections))
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused, queue_id=self._prepared.queue_id)
        refuse_seqs(operations, reasons)
        return apply_batch(retarget(operations, tables), reasons=reasons, write=partial(self._write, write_rows))

    def _write(self, write_rows: _WriteRows, operations: Operations) -> ApplyResult:
        """Write operations on distinct records, in one transaction per table."""
        by_table = _by_table(operations.collections)
        written, rejected = 0, dict[int, str]()
        for name, positions in sorted(by_table.items()):
            part = operations if len(by_table) == 1 else operations.take(positions)
            count, unfit = self._write_table(write_rows, name, part)
            written += count
            rejected |= {positions[i]: reason for i, reason in unfit.items()}
        return ApplyResult(
            written,
            len(operations) - written - len(rejected),
            tuple(Rejection(*pair) for pair in sorted(rejected.items())),
        )

    def _write_table(self, write_rows: _WriteRows, name: str, operations: Operations) -> tuple[int, Reasons]:
        """Write operations of one table. Examine the table again and retry if it was altered.

        :returns: how many were written, and why others can never be, by position.
        """
        retry = self._database.retry
        try:
            return retry.call(
                partial(self._try_table, write_rows, name, operations),
                worth_repeating=lambda error: isinstance(error, SchemaChanged),
            )
        except SchemaChanged as error:
            raise SinkUnavailable(f"{self}: {error}, {retry.attempts} times") from None

    def _try_table(self, write_rows: _WriteRows, name: str, operations: Operations) -> tuple[int, Reasons]:
        written = 0

        def attempt(chosen: range) -> str | None:
            nonlocal written
            try:
                written += self._database.run(write_rows, table, rows.part(chosen))
            except Poison as error:
                return str(error)
            return None

        try:
            table = self._prepared.prepare(name)
            rows, unfit = rows_of(operations, table.contents, self._database.dialect.limits, self._layout.key)
            poison = {rows.positions[i]: reason for i, reason in isolate(len(rows), attempt)}
        except SchemaChanged:
            self._prepared.examine_again(name)
            raise
        except SinkRefused:
            self._prepared.prove_again(name)  # raises SinkLostData if the table was lost during the drain
            raise
        return written, unfit | poison

    def _upsert(self, connection: Connection, table: Table, rows: Rows, *, repairs: bool = False) -> int:
        """Write the rows above the floor that are newer than those in the table. The floor stays until then.

        :param repairs: whether to write rows of an equal rank and below the floor, too.
        """
        table = replace(table, repairs=repairs)
        dialect, mark = self._database.dialect, self._prepared.mark(table.name)
        beside = [found_mark(table)] if mark else []
        with held_floor(connection, self._layout.schema, locks_reads=dialect.locks_reads, beside=beside) as found:
            floor, marks = found
            if mark:
                check_mark(table, marks[0], mark, sink=str(self))
            if floor and not repairs:
                rows = rows.above(stale_rank(floor))
            if not len(rows):
                return 0
            if not mark:
                note_rows(connection, table, deleted=False)
            written = dialect.upsert(connection, table, rows)
            # the other rows should be stale, which is checked: triggers and rules keep rows out without an error
            is_kept_out = written < len(rows) and dialect.held(connection, table, rows) < len(rows)
        if is_kept_out:  # raised here: if the floor was raised meanwhile, a sweep may have removed newer rows
            raise Poison(KEPT_OUT)
        return written

    def __str__(self) -> str:
        return str(self._database)

    def __repr__(self) -> str:
        return f"<SqlSink {self}>"


def _by_table(names: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """Return the positions of each table's operations."""
    if names.count(names[0]) == len(names):  # the usual case
        return {names[0]: range(len(names))}
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(name, []).append(i)
    return found
