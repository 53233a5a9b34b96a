"""The columns of a table of the SQL sink, and how ids become its keys (pure)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, Literal

import orjson

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks import naming

KEY, RANK, DELETED = "id", "_rank", "_deleted"
TYPES = ("text", "integer", "real", "numeric", "boolean", "json", "timestamp")
"""Types of data columns."""
KEY_TYPES = ("text", "integer", "uuid", "date")
"""Types of key columns: only one text stands for each of their values."""
_MARKS: Mapping[str, str | int] = {
    "text": "xq_mark",
    "integer": -(1 << 31),
    "uuid": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "date": "1000-01-01",
}
"""The sink's own key value of each type."""
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]{0,57}")
_SCHEMA = re.compile(r"([A-Za-z_](?:[A-Za-z0-9_-]|\$\$){0,62})\.(.*)", re.DOTALL)
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that holds a document or one of its fields."""

    name: str
    type: str = "text"
    places: int | None = None
    """Decimal places that the column keeps; None if it keeps all, or holds no numbers."""
    doubles: Literal["", "numbers", "json"] = ""
    """What the column converts to doubles: all text that looks like a number, or the numbers within JSON."""
    takes: Literal["", "integers", "numbers", "booleans"] = ""
    """The values that the column is meant for, if its database would also keep others; empty if it refuses others."""
    zoneless: bool = False
    """Whether the column keeps times without a zone."""


@dataclass(frozen=True, slots=True)
class Key:
    """The primary key of a table.

    A key of one column takes the id as it is. Several columns take the elements of an id that is a JSON array,
    ``["a",77]``. An id must be the one normal form of its values, so two ids never share a row.
    """

    columns: tuple[Column, ...] = (Column(KEY),)

    @classmethod
    def of(cls, key: str | Sequence[str] | Mapping[str, str]) -> Key:
        """Check the option that names the key: a name, several, or names and types."""
        return cls(_checked("key", key, KEY_TYPES, {RANK, DELETED}))

    @property
    def is_plain(self) -> bool:
        """Whether every text is a key."""
        return len(self.columns) == 1 and self.columns[0].type == "text"

    @property
    def mark(self) -> tuple[str | int, ...]:
        """The key of the sink's own row, by which it recognises the table; no record has this key."""
        return tuple(_MARKS[column.type] for column in self.columns)

    def values(self, record: bytes) -> tuple[str | int, ...]:
        """Return the values of an id; raise Unfit if it does not fit, is not in normal form, or is the sink's own."""
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
                f"the id is not in its normal form, {orjson.dumps(found).decode()}: two ids would share one row"
            )
        return tuple(map(_element, found, self.columns))


@dataclass(frozen=True, slots=True)
class Contents:
    """The data columns of a table."""

    columns: tuple[Column, ...]
    """The columns of the documents' fields, or the one column of whole documents."""
    whole: bool
    """Whether the one column takes whole documents."""

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
        """
        taken = {RANK, DELETED, *(column.name.lower() for column in (key or Key()).columns)}
        if columns is not None:
            return cls(_checked("column", columns, TYPES, taken), whole=False)
        named = dict(document) if isinstance(document, Mapping) else {"document": document}
        ((name, kind),) = named.items() if len(named) == 1 else (("", ""),)
        if kind not in ("text", "json") or not _COLUMN.fullmatch(name) or name.lower() in taken:
            raise SinkConfigurationError(
                f"document={document!r}: expected 'text' or 'json', or a column and one of them: {{'data': 'json'}}"
            )
        return cls((Column(name, kind),), whole=True)


def _checked(
    what: str, given: str | Sequence[str] | Mapping[str, str], types: Sequence[str], taken: Collection[str]
) -> tuple[Column, ...]:
    """Read a name, several, or names and types of columns; the default type is ``text``."""
    names = [given] if isinstance(given, str) else list(given)
    kinds = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, "text")
    if not names or len({name.lower() for name in kinds}) != len(names):
        raise SinkConfigurationError(f"{what}: expected at least one name, each of them once, whatever its case")
    for name, kind in kinds.items():
        if not _COLUMN.fullmatch(name) or name.lower() in taken:
            raise SinkConfigurationError(
                f"{what} {name!r}: expected a letter or _, then letters, digits, _; not {', '.join(sorted(taken))}"
            )
        if kind not in types:
            raise SinkConfigurationError(f"{what} {name!r} has type {kind!r}: expected one of {', '.join(types)}")
    return tuple(Column(*pair) for pair in kinds.items())


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the sink."""

    name: str
    contents: Contents
    key: Key = Key()
    schema: str | None = None
    """None for the connection's default schema."""
    ranked: bool = True
    """Whether its rows have a rank and a tombstone mark; with the guard ``fence`` they have neither."""
    repairs: bool = False
    """Whether rows of an equal rank are written, too."""
    shape: Any = None
    """What its writes depend on, as the dialect has read it; None if the dialect does not read it."""

    @property
    def live(self) -> str:
        """Name of the view that hides tombstones."""
        return f"{self.name}_live"

    @property
    def below(self) -> str:
        """The comparison of a row's rank with a new one that lets the new one be written."""
        return "<=" if self.repairs else "<"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are written, in order."""
        own = (*self.keys, *(column.name for column in self.contents.columns))
        return (*own, RANK, DELETED) if self.ranked else own

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return tuple(column.name for column in self.key.columns)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def split_schema(template: str) -> tuple[str | None, str]:
    """Split a template such as ``warehouse.$collection`` into its schema and the rest.

    Only a dot of the template itself counts: a dot in the name of a collection is part of that name.
    """
    found = _SCHEMA.fullmatch(template)
    return (found[1].replace("$$", "$"), found[2]) if found else (None, template)


def fill_collections(template: str, collections: Iterable[str], *, fold: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the table's name for each collection, folded to lower case if wanted, and why others are refused."""
    tables, refused = naming.name_collections(template, collections, refuse_table)
    return {collection: name.lower() if fold else name for collection, name in tables.items()}, refused


def refuse_table(name: str) -> str | None:
    """Return why a table cannot have a name."""
    if not _TABLE.fullmatch(name):
        return f"table {name[:100]!r}: expected 1 to 58 of letters, digits, _ . $ -, the first a letter, a digit or _"
    lowered = name.lower()
    if lowered.startswith(("xq_", "sqlite_", "pg_")) or lowered.endswith("_live"):
        return f"table {name!r}: names that begin with xq_, sqlite_ or pg_, or end with _live, are taken"
    return None


def refuse_pointer(name: str) -> str | None:
    """Return why a pointer, which is a view, cannot have a name."""
    if not _TABLE.fullmatch(name) or name.lower().startswith(("xq_", "sqlite_", "pg_")):
        return f"view {name[:100]!r}: expected 1 to 58 of letters, digits, _ . $ -, not first xq_, sqlite_ or pg_"
    return None


check_template = partial(naming.check_template, refuse=refuse_table, what="table")
"""Check a template of table names, without a schema, and return it in its normal form."""


class Unfit(ValueError):
    """The table cannot take an id or a document; the text says why."""


_KEY_FORMS: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "text": (str, str),
    "integer": (int, str),
    "uuid": (uuid.UUID, str),
    "date": (date.fromisoformat, date.isoformat),
}
"""How each type is read and written."""


def _key_value(text: str, column: Column) -> str | int:
    """Read the value of a key column from its normal form."""
    read, write = _KEY_FORMS[column.type]
    try:
        value = read(text)
        is_normal = write(value) == text
    except ValueError:
        is_normal = False
    if not is_normal:
        raise Unfit(f"key {column.name!r}: expected {column.type} in its normal form, found {text[:100]!r}")
    if not isinstance(value, int):
        return text
    if value not in INT64:
        raise Unfit(f"key {column.name!r} is an integer of more than 64 bits")
    return value


def _element(value: object, column: Column) -> str | int:
    if isinstance(value, bool) or not isinstance(value, int if column.type == "integer" else str):
        raise Unfit(f"key {column.name!r}: expected {column.type}, found {value!r:.100}")
    text = str(value)
    if "\0" in text:
        raise Unfit(f"key {column.name!r} contains a NUL, which SQL text cannot hold")
    return _key_value(text, column)


def text_of(value: bytes, what: str) -> str:
    """Read an id or a document as text; raise Unfit if it is not UTF-8 or contains a NUL."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"{what} is not UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise Unfit(f"{what} contains a NUL, which SQL text cannot hold")
    return text
