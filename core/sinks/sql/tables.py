"""What a table of the SQL sink looks like, and how documents become its rows (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.batch import Reasons
from export_queue.core.sinks.operations import Operations

Value = str | int | float | None
Row = tuple[Any, ...]
"""Key (str), a value for each column, rank (int), whether the record is deleted (bool)."""

KEY, RANK, DELETED = "id", "_rank", "_deleted"
TYPES = ("text", "integer", "real", "numeric", "boolean", "json", "timestamp")
"""Types that a column may be created with."""

_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]{0,57}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that holds a document or one of its fields."""

    name: str
    type: str = "text"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds besides key, rank and tombstone mark.

    :param columns: the columns of the documents' fields, or the one column of whole documents.
    :param whole: whether that one column takes whole documents.
    """

    columns: tuple[Column, ...]
    whole: bool

    @classmethod
    def of(cls, columns: Sequence[str] | Mapping[str, str] | None, document: str) -> Contents:
        """Check the options that describe a table's columns.

        :param columns: names, or names and types, of fields; None for whole documents.
        :param document: type of the column of whole documents.
        :raises SinkConfigurationError: a name or type is not possible.
        """
        if columns is None:
            if document not in ("text", "json"):
                raise SinkConfigurationError(f"document={document!r}: expected 'text' or 'json'")
            return cls((Column("document", document),), whole=True)
        pairs = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "text")
        if not pairs or len(pairs) != len(columns):
            raise SinkConfigurationError("columns: expected at least one name, each of them once")
        for name, kind in pairs.items():
            if not _COLUMN.fullmatch(name) or name.lower() in (KEY, RANK, DELETED):
                raise SinkConfigurationError(
                    f"column {name!r}: expected a letter or _, then letters, digits, _; not {KEY}, {RANK}, {DELETED}"
                )
            if kind not in TYPES:
                raise SinkConfigurationError(f"column {name!r} has type {kind!r}: expected one of {', '.join(TYPES)}")
        return cls(tuple(Column(*pair) for pair in pairs.items()), whole=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the sink."""

    name: str
    contents: Contents

    @property
    def live(self) -> str:
        """Name of the view that hides tombstones."""
        return f"{self.name}_live"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are written, in the order of a row."""
        return KEY, *(column.name for column in self.contents.columns), RANK, DELETED


def check_template(template: str) -> None:
    """Check a template of table names.

    :raises SinkConfigurationError: another placeholder than ``{collection}``, or a name that no table may have.
    """
    names = _PLACEHOLDER.findall(template)
    if set(names) - {"collection"}:
        raise SinkConfigurationError(f"table template {template!r}: the only placeholder is {{collection}}")
    refused = refuse_table(template.replace("{collection}", "c"))
    if refused:
        raise SinkConfigurationError(f"table template {template!r}: {refused}")


def fill_collections(template: str, collections: Iterable[str], *, fold: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Name the table of each collection.

    :param fold: whether names that differ by case are one table.
    :returns: the table by collection, and why a collection is refused.
    """
    tables: dict[str, str] = {}
    refused: dict[str, str] = {}
    for collection in collections:
        name = template.replace("{collection}", collection)
        reason = refuse_table(name)
        if reason:
            refused[collection] = reason
        else:
            tables[collection] = name.lower() if fold else name
    return tables, refused


def refuse_table(name: str) -> str | None:
    """Say why a table cannot have a name."""
    if not _TABLE.fullmatch(name):
        return f"table {name[:100]!r}: expected 1 to 58 of letters, digits, _ . $ -, the first a letter, a digit or _"
    lowered = name.lower()
    if lowered.startswith(("xq_", "sqlite_", "pg_")) or lowered.endswith("_live"):
        return f"table {name!r}: names that begin with xq_, sqlite_ or pg_, or end with _live, are taken"
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a database takes in its text columns, and how."""

    id_bytes: int
    """The most bytes that its index takes."""
    values_as_text: bool
    """Whether it reads values of any type from text; else they are handed over as native ones."""


class Unfit(ValueError):
    """An id or a document that the table cannot take; the text says why."""


def rows_of(operations: Operations, contents: Contents, limits: Limits) -> tuple[list[Row], Reasons]:
    """Make the rows of operations.

    :param operations: on distinct records of one table.
    :returns: the rows that the table can take, and why it cannot take the others, by position.
    """
    ids, documents, ranks = operations.ids, operations.documents, operations.ranks()
    if contents.whole and contents.columns[0].type == "text":
        rows = _plain_rows(ids, documents, ranks, limits)
        if rows is not None:
            return rows, {}
    rows, reasons = [], {}
    for i, document in enumerate(documents):
        try:
            key = _key(ids[i], limits)
            rows.append((key, *_values(document, contents, limits), ranks[i], document is None))
        except Unfit as unfit:
            reasons[i] = str(unfit)
    return rows, reasons


def _plain_rows(
    ids: Sequence[bytes], documents: Sequence[bytes | None], ranks: Sequence[int], limits: Limits
) -> list[Row] | None:
    """Make rows of whole documents in one go; None if any of them needs a closer look."""
    if max(map(len, ids), default=0) > limits.id_bytes:
        return None
    try:
        keys = [record.decode() for record in ids]
        texts = [None if document is None else document.decode() for document in documents]
    except UnicodeDecodeError:
        return None
    if "\0" in "".join(keys) or "\0" in "".join(filter(None, texts)):
        return None
    return list(zip(keys, texts, ranks, [text is None for text in texts], strict=True))


def _key(record: bytes, limits: Limits) -> str:
    if len(record) > limits.id_bytes:
        raise Unfit(f"the id has {len(record)} bytes, at most {limits.id_bytes} are possible")
    return _text(record, "the id")


def _values(document: bytes | None, contents: Contents, limits: Limits) -> tuple[Value, ...]:
    if document is None:
        return (None,) * len(contents.columns)
    if contents.whole:
        if contents.columns[0].type == "json":
            _parsed(document)
        return (_text(document, "the document"),)
    fields = _parsed(document)
    if not isinstance(fields, dict):
        raise Unfit(f"the document is no JSON object but {type(fields).__name__}: its fields cannot be columns")
    convert = _as_text if limits.values_as_text else _as_native
    return tuple(convert(fields.get(column.name), column) for column in contents.columns)


def _text(value: bytes, what: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"{what} is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise Unfit(f"{what} holds a NUL, which text of SQL cannot")
    return text


def _parsed(document: bytes) -> object:
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise Unfit(f"the document is not JSON: {error}") from None


def _as_text(value: object, column: Column) -> Value:
    if value is None:
        return None
    text = value if isinstance(value, str) and column.type != "json" else orjson.dumps(value).decode()
    if "\0" in text:
        raise Unfit(f"field {column.name!r} holds a NUL, which text of SQL cannot")
    return text


def _as_native(value: object, column: Column) -> Value:
    if column.type in ("text", "json") or not isinstance(value, int | float):
        return _as_text(value, column)
    if isinstance(value, int) and value not in _INT64:
        raise Unfit(f"field {column.name!r} is an integer of more than 64 bits")
    return value
