"""From operations to the rows of a table (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.sinks.batch import Reasons
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.sql.tables import Column, Contents, Key, Row, Unfit, text_of
from export_queue.core.sinks.sql.values import check_doubles, check_places, fields_of, parsed


@dataclass(frozen=True, slots=True)
class Limits:
    """What a database takes in its text columns, and how."""

    id_bytes: int
    """The most bytes that its index takes."""
    convert: Callable[[object, str, Column], Any]
    """How fields become values; see :mod:`export_queue.core.sinks.sql.values`."""


def rows_of(
    operations: Operations, contents: Contents, limits: Limits, key: Key | None = None
) -> tuple[list[Row], Reasons]:
    """Make the rows of operations.

    :param operations: on distinct records of one table.
    :param key: the table's key; by default one column of text.
    :returns: the rows that the table can take, and why it cannot take the others, by position.
    """
    key = key or Key()
    ids, documents, ranks = operations.ids, operations.documents, operations.ranks()
    if key.is_plain and contents.whole and contents.columns[0] == Column(contents.columns[0].name):
        rows = _plain_rows(ids, documents, ranks, limits, key)
        if rows is not None:
            return rows, {}
    rows, reasons = [], {}
    for i, document in enumerate(documents):
        try:
            if len(ids[i]) > limits.id_bytes:
                raise Unfit(f"the id has {len(ids[i])} bytes, at most {limits.id_bytes} are possible")
            rows.append((*key.values(ids[i]), *_values(document, contents, limits), ranks[i], document is None))
        except Unfit as unfit:
            reasons[i] = str(unfit)
    return rows, reasons


def _plain_rows(
    ids: Sequence[bytes], documents: Sequence[bytes | None], ranks: Sequence[int], limits: Limits, key: Key
) -> list[Row] | None:
    """Make rows of whole documents in one go; None if any of them needs a closer look."""
    if max(map(len, ids), default=0) > limits.id_bytes:
        return None
    try:
        keys = [record.decode() for record in ids]
        texts = [None if document is None else document.decode() for document in documents]
    except UnicodeDecodeError:
        return None
    if key.mark[0] in keys or "\0" in "".join(keys) or "\0" in "".join(filter(None, texts)):
        return None
    return list(zip(keys, texts, ranks, [text is None for text in texts], strict=True))


def _values(document: bytes | None, contents: Contents, limits: Limits) -> tuple[Any, ...]:
    if document is None:
        return (None,) * len(contents.columns)
    if contents.whole:
        (column,) = contents.columns
        text = text_of(document, "the document")
        if column.type == "json":
            parsed(document)
        if column.doubles:
            check_doubles(text, column)
        return (text,)
    fields, texts = fields_of(document, contents.columns)
    found = []
    for column in contents.columns:
        value, text = fields.get(column.name), texts.get(column.name, "")
        check_places(value, text, column)
        found.append(limits.convert(value, text, column))
    return tuple(found)
