"""What a table of the SQL sink looks like, and how ids become its keys (pure)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import orjson

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks import naming

KEY, RANK, DELETED = "id", "_rank", "_deleted"
TYPES = ("text", "integer", "real", "numeric", "boolean", "json", "timestamp")
"""Types that a column may be created with."""
KEY_TYPES = ("text", "integer", "uuid", "date")
"""Types of key columns: each of their values can be written as text in one way only."""

_MARKS: Mapping[str, str | int] = {
    "text": "xq_mark",
    "integer": -(1 << 31),
    "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "date": "1000-01-01",
}
"""The sink's own value of each type."""

_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]{0,57}")
_SCHEMA = re.compile(r"([A-Za-z_](?:[A-Za-z0-9_-]|\$\$){0,62})\.(.*)", re.DOTALL)
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that holds a document or one of its fields."""

    name: str
    type: str = "text"
    places: int | None = None
    """Decimal places that the column keeps; None where it keeps any, or is none of numbers."""
    doubles: Literal["", "numbers", "json"] = ""
    """What the column turns into doubles: all that looks like a number, or the numbers within JSON."""
    takes: Literal["", "integers", "numbers", "booleans"] = ""
    """What the column is for, where its database would keep anything else, too; empty where the database refuses it."""
    zoneless: bool = False
    """Whether the column keeps times without a zone."""


@dataclass(frozen=True, slots=True)
class Key:
    """What makes a row the row of a record.

    One column takes the id as it is. Several take the elements of an id that is a JSON array, ``["a",77]``.
    An id is refused unless it is the one way to write its values: two ids never share a row.

    :param columns: the columns of the primary key.
    """

    columns: tuple[Column, ...] = (Column(KEY),)

    @classmethod
    def of(cls, key: str | Sequence[str] | Mapping[str, str]) -> Key:
        """Check the option that names the key.

        :param key: a name, several, or names and types.
        :raises SinkConfigurationError: a name or type is not possible.
        """
        names = [key] if isinstance(key, str) else list(key)
        types = dict(key) if isinstance(key, Mapping) else dict.fromkeys(names, "text")
        if not names or len({name.lower() for name in types}) != len(names):
            raise SinkConfigurationError("key: expected at least one name, each of them once, whatever its case")
        for name, kind in types.items():
            if not _COLUMN.fullmatch(name) or name.lower() in (RANK, DELETED):
                raise SinkConfigurationError(
                    f"key {name!r}: expected a letter or _, then letters, digits, _; not {RANK}, {DELETED}"
                )
            if kind not in KEY_TYPES:
                raise SinkConfigurationError(f"key {name!r} has type {kind!r}: expected one of {', '.join(KEY_TYPES)}")
        return cls(tuple(Column(*pair) for pair in types.items()))

    @property
    def is_plain(self) -> bool:
        """Whether every text is a key."""
        return len(self.columns) == 1 and self.columns[0].type == "text"

    @property
    def mark(self) -> tuple[str | int, ...]:
        """The key of the sink's own row, by which it knows the table again; no record has it."""
        return tuple(_MARKS[column.type] for column in self.columns)

    def values(self, record: bytes) -> tuple[str | int, ...]:
        """Return the values of an id.

        :raises Unfit: the id is no key of such a table, another way to write one, or the sink's own.
        """
        found = self._read(record)
        if found == self.mark:
            raise Unfit(f"the id {record.decode()} is the sink's own")
        return found

    def _read(self, record: bytes) -> tuple[str | int, ...]:
        text = text_of(record, "the id")
        if len(self.columns) == 1:
            return (_key_value(text, self.columns[0]),)
        expected = f"expected a JSON array [{', '.join(column.name for column in self.columns)}]"
        try:
            found = orjson.loads(record)
        except orjson.JSONDecodeError:
            raise Unfit(f"the id is not JSON: {expected}") from None
        if not isinstance(found, list) or len(found) != len(self.columns):
            raise Unfit(f"the id has another shape: {expected}")
        if orjson.dumps(found) != record:
            raise Unfit(
                f"the id is not written as it must be, {orjson.dumps(found).decode()}: two ids would be one row"
            )
        return tuple(map(_element, found, self.columns))


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds besides key, rank and tombstone mark.

    :param columns: the columns of the documents' fields, or the one column of whole documents.
    :param whole: whether that one column takes whole documents.
    """

    columns: tuple[Column, ...]
    whole: bool

    @classmethod
    def of(
        cls,
        columns: Sequence[str] | Mapping[str, str] | None,
        document: str | Mapping[str, str],
        key: Key | None = None,
    ) -> Contents:
        """Check the options that describe a table's columns.

        :param columns: names, or names and types, of fields; None for whole documents.
        :param document: type of the column of whole documents, or its name and type.
        :param key: the table's key; by default the column ``id``.
        :raises SinkConfigurationError: a name or type is not possible.
        """
        taken = {RANK, DELETED, *(column.name.lower() for column in (key or Key()).columns)}
        if columns is None:
            named = dict(document) if isinstance(document, Mapping) else {"document": document}
            ((name, kind),) = named.items() if len(named) == 1 else (("", ""),)
            if kind not in ("text", "json") or not _COLUMN.fullmatch(name) or name.lower() in taken:
                raise SinkConfigurationError(
                    f"document={document!r}: expected 'text' or 'json', or a column and one of them: {{'data': 'json'}}"
                )
            return cls((Column(name, kind),), whole=True)
        pairs = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "text")
        if not pairs or len({name.lower() for name in pairs}) != len(columns):
            raise SinkConfigurationError("columns: expected at least one name, each of them once, whatever its case")
        for name, kind in pairs.items():
            if not _COLUMN.fullmatch(name) or name.lower() in taken:
                raise SinkConfigurationError(
                    f"column {name!r}: expected a letter or _, then letters, digits, _; not {', '.join(sorted(taken))}"
                )
            if kind not in TYPES:
                raise SinkConfigurationError(f"column {name!r} has type {kind!r}: expected one of {', '.join(TYPES)}")
        return cls(tuple(Column(*pair) for pair in pairs.items()), whole=False)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the sink."""

    name: str
    contents: Contents
    key: Key = Key()
    schema: str | None = None
    """Where it is; None for where the connection looks first."""
    ranked: bool = True
    """Whether its rows have rank and tombstone mark; those of a sink with the guard ``fence`` have neither."""
    shape: Any = None
    """What its writes depend on, as the dialect found it; None where it does not look."""

    @property
    def live(self) -> str:
        """Name of the view that hides tombstones."""
        return f"{self.name}_live"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are written, in the order of a row."""
        own = (*self.keys, *(column.name for column in self.contents.columns))
        return (*own, RANK, DELETED) if self.ranked else own

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return tuple(column.name for column in self.key.columns)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def split_schema(template: str) -> tuple[str | None, str]:
    """Part a template such as ``warehouse.$collection`` into its schema and the rest.

    Only a dot that the template itself begins with counts: one in the name of a collection is part of the name.
    """
    found = _SCHEMA.fullmatch(template)
    return (found[1].replace("$$", "$"), found[2]) if found else (None, template)


def check_template(template: str) -> str:
    """Check a template of table names, without a schema.

    :returns: the template in its normal form.
    :raises SinkConfigurationError: another field than ``$collection``, or a name that no table may have.
    """
    return naming.check_template(template, refuse_table, what="table")


def fill_collections(template: str, collections: Iterable[str], *, fold: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Name the table of each collection.

    :param fold: whether names that differ by case are one table.
    :returns: the table by collection, and why a collection is refused.
    """
    tables, refused = naming.name_collections(template, collections, refuse_table)
    return {collection: name.lower() if fold else name for collection, name in tables.items()}, refused


def refuse_table(name: str) -> str | None:
    """Say why a table cannot have a name."""
    if not _TABLE.fullmatch(name):
        return f"table {name[:100]!r}: expected 1 to 58 of letters, digits, _ . $ -, the first a letter, a digit or _"
    lowered = name.lower()
    if lowered.startswith(("xq_", "sqlite_", "pg_")) or lowered.endswith("_live"):
        return f"table {name!r}: names that begin with xq_, sqlite_ or pg_, or end with _live, are taken"
    return None


class Unfit(ValueError):
    """An id or a document that the table cannot take; the text says why."""


def _key_value(text: str, column: Column) -> str | int:
    """Read the value of a key column from its text; only the way that it would be written is taken."""
    read, written = _KEY_FORMS[column.type]
    try:
        value = read(text)
        exact = written(value) == text
    except ValueError:
        exact = False
    if not exact:
        raise Unfit(f"{text[:100]!r} is no {column.type} as key {column.name!r} takes it")
    if isinstance(value, int):
        if value not in _INT64:
            raise Unfit(f"key {column.name!r} is an integer of more than 64 bits")
        return value
    return text


_KEY_FORMS: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "text": (str, str),
    "integer": (int, str),
    "uuid": (uuid.UUID, str),
    "date": (date.fromisoformat, date.isoformat),
}


def _element(value: object, column: Column) -> str | int:
    if isinstance(value, bool) or not isinstance(value, int if column.type == "integer" else str):
        raise Unfit(f"{value!r:.100} is no {column.type} as key {column.name!r} takes it")
    text = str(value)
    if "\0" in text:
        raise Unfit(f"key {column.name!r} holds a NUL, which text of SQL cannot")
    return _key_value(text, column)


def text_of(value: bytes, what: str) -> str:
    """Read an id or a document as text.

    :raises Unfit: it is no text, or one that SQL does not have.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"{what} is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise Unfit(f"{what} holds a NUL, which text of SQL cannot")
    return text
