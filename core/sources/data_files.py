"""Data sets in files and in results of SQL queries, as rows, a part at a time."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, cast

import orjson
import sqlalchemy as sa

from export_queue.core.errors import EntryError, InvalidArgument, StoreError
from export_queue.core.segments import load_pyarrow
from export_queue.core.store import Database

if TYPE_CHECKING:
    import pyarrow as pa

Opened = Callable[[], AbstractContextManager[IO[bytes]]]

_ROWS = 5000
"""Rows of a query that are read at once."""
_PATTERNS = {
    "null": "a^",
    "int64": r"^[ \t]*(0|-?[1-9][0-9]{0,17})[ \t]*$",
    "double": r"^[ \t]*-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?[ \t]*$",
    "bool": "^(true|True|TRUE|false|False|FALSE)$",
}
"""What all texts of a column in a CSV file look like if they are of a type. It keeps whole numbers exact."""
_PARQUET, _CSV, _LINES = (".parquet",), (".csv",), (".ndjson", ".jsonl")


def rows_of_file(name: str, opened: Opened) -> Iterator[Any]:
    """Read the rows of a file: Parquet, CSV with a line of column names, or a JSON object in each line.

    :param name: the file's name, whose end says what it is: ``.parquet``, ``.csv``, ``.ndjson`` or ``.jsonl``, the
        latter three also compressed: ``.csv.gz``.
    :param opened: opens the file for reading bytes, more than once for CSV.
    :returns: record batches, or mappings.
    :raises InvalidArgument: the name has another end.
    :raises EntryError: the file is damaged or cut off; the error names it.
    """
    path = PurePath(name.lower())
    is_compressed = path.suffix == ".gz"
    kind = path.with_suffix("").suffix if is_compressed else path.suffix
    readers = {_CSV: _csv, _LINES: _lines} | ({} if is_compressed else {_PARQUET: _parquet})
    read = next((read for kinds, read in readers.items() if kind in kinds), None)
    if read is None:
        raise InvalidArgument(
            f"file {name}: expected a name that ends with .parquet, .csv, .ndjson or .jsonl, or with .csv.gz, "
            ".ndjson.gz or .jsonl.gz"
        )
    try:
        yield from read(partial(_decompressed, opened) if is_compressed else opened)
    except FileNotFoundError:
        raise InvalidArgument(f"file {name}: expected a file, found none") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        if isinstance(error, EntryError) or getattr(error, "errno", None) is not None:
            raise  # an errno is the file system's: only the others are about the content
        raise EntryError(f"file {name}: expected {kind[1:]}, found what cannot be read so: {error}") from error


@contextlib.contextmanager
def _decompressed(opened: Opened) -> Iterator[IO[bytes]]:
    with opened() as file:
        if not file.read(1):  # else gzip takes a file without a byte for an empty one
            raise EOFError("the file is empty")
        file.seek(0)
        with gzip.open(file) as content:
            yield cast(IO[bytes], content)


def _parquet(opened: Opened) -> Iterator[Any]:
    load_pyarrow()
    from pyarrow.parquet import ParquetFile

    with opened() as file:
        found = ParquetFile(file)
        yield _no_rows(found.schema_arrow)
        yield from found.iter_batches()


def _csv(opened: Opened) -> Iterator[Any]:
    """Read a CSV file twice: a column has the type that all its texts have, wherever they are in the file."""
    pa = load_pyarrow()
    from pyarrow.csv import ConvertOptions, open_csv

    with opened() as file:
        names = open_csv(file).schema.names
    if len(set(names)) < len(names):
        raise ValueError(f"the columns are {', '.join(names)}: expected names that differ")
    excluded = {name: set[str]() for name in names}
    as_text = ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with opened() as file:  # opened again, since a reader reads ahead
        for batch in open_csv(file, convert_options=as_text):
            for name, column in zip(names, batch.columns, strict=True):
                excluded[name] |= _excluded(column, as_text.null_values)
    kinds = {
        name: next((kind for kind in _PATTERNS if kind not in found), "string") for name, found in excluded.items()
    }
    types = {name: pa.type_for_alias(kind) for name, kind in kinds.items()}
    with opened() as file:
        reader = open_csv(file, convert_options=ConvertOptions(column_types=types))
        yield _no_rows(reader.schema)
        yield from reader


def _excluded(column: pa.Array, nothing: Sequence[str]) -> set[str]:
    """Return the types that texts of a CSV file do not have.

    :param nothing: texts that are null in a column of another type than text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.filter(pc.invert(pc.is_in(column, pa.array(nothing))))
    return {
        kind for kind, pattern in _PATTERNS.items() if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False
    }


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows, which says what the columns of an empty file are."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema=schema)


def _lines(opened: Opened) -> Iterator[Any]:
    with opened() as file:
        yield from _objects(file)


def _objects(file: IO[bytes]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(found, dict):
                raise ValueError(f"line {number}: expected a JSON object, found {type(found).__name__}")
            yield found


def rows_of_own_query(database: Database, sql: str) -> Iterator[dict[str, Any]]:
    """Run a query in the store's own database, as :func:`rows_of_query` does. It sees one snapshot.

    PostgreSQL streams a result only in a SQL transaction; on SQLite one would hold up all writers.

    :param sql: one statement. On PostgreSQL, names of tables need their schema.
    """
    if database.dialect.file is not None:
        with database.connect() as connection:
            yield from rows_of_query(connection, sql)
        return
    with database.begin() as work:
        yield from rows_of_query(work.connection, sql)


def rows_of_query(connection: sa.Connection, sql: str, parameters: Any = None) -> Iterator[dict[str, Any]]:
    """Run a query and read its rows, some thousand at a time.

    :param connection: to the database.
    :param sql: one statement, in the words of the database.
    :param parameters: values of its placeholders, as the driver takes them.
    :returns: mappings of column names to values.
    :raises EntryError: two columns have one name.
    :raises StoreError: the database refuses the query, or fails during it.
    """
    options = {"stream_results": True, "no_parameters": parameters is None, "max_row_buffer": _ROWS}
    try:
        found = connection.execution_options(**options).exec_driver_sql(sql, parameters)
        names = [*found.keys()]
        if len(set(names)) < len(names):
            raise EntryError(
                f"the query's columns are {', '.join(names)}: expected names that differ",
                hint="name them: select a.id, b.id as other_id",
            )
        for block in found.partitions(_ROWS):
            for row in block:
                yield dict(zip(names, row, strict=True))
    except sa.exc.SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error  # without the statement and its values
        raise StoreError(f"the query failed: {type(reason).__name__}: {str(reason).strip()}") from error
