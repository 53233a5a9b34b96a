"""Which columns of a DataFrame a queue accepts, by its codecs; checked before any job starts.

A row's key and value become exactly the bytes that ``queue.add`` writes for the same values. A type is refused if
Spark's value does not determine these bytes.

=================  ============================================================================================
codec              accepts columns of type
=================  ============================================================================================
``str``            string
``int``            byte, short, integer, long
``bytes``          binary
``json``           boolean, numbers, string, date, timestamp; structs, arrays and maps (with string keys) of these
an import path     binary: the output of the codec's ``encode``
=================  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import types as t

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Queue

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_PLAIN_JSON = (
    *_WHOLE,
    t.BooleanType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.StringType,
    t.DateType,
    t.TimestampType,
    t.NullType,
)
_ENCODED = "apply the codec's encode to the column in a function of your own"
_REMEDIES: dict[type[t.DataType], str] = {
    t.BinaryType: "send text: decode(column, 'UTF-8') or base64(column); values that are bytes need the codec 'bytes'",
    t.TimestampNTZType: "give it a time zone, cast(column as timestamp), or send text",
    t.DayTimeIntervalType: "send its seconds, or text",
    t.YearMonthIntervalType: "send its months, or text",
    t.CalendarIntervalType: "send text: cast(column as string)",
    t.VariantType: "name its fields: from_json(to_json(column), schema)",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a DataFrame that make entries.

    :param key: name of the column with keys.
    :param value: name of the column with values; null deletes the record.
    :param queue: name of the column with ids of queues; None if all rows belong to one queue.
    :param latest_by: name of the column that decides between rows with the same key.
    """

    key: str
    value: str
    queue: str | None = None
    latest_by: str | None = None

    def misfits(self, schema: t.StructType, queues: Mapping[str, Queue]) -> dict[str, InvalidArgument]:
        """Find the queues that do not accept these columns.

        :param schema: the schema of the DataFrame.
        :param queues: the queues that rows may name, by id.
        :returns: the reason, by id of the queue.
        :raises InvalidArgument: a column is missing.
        """
        key, value = _find(schema, self.key, "key"), _find(schema, self.value, "value")
        if self.queue is not None:
            found = _find(schema, self.queue, "queue_column")
            if not isinstance(found, t.StringType):
                raise InvalidArgument(
                    f"column {self.queue!r}: expected string with ids of queues, found {found.simpleString()}"
                )
        if self.latest_by is not None:
            _find(schema, self.latest_by, "latest_by")
        return {name: problem for name, queue in queues.items() if (problem := self._misfit(key, value, queue))}

    def _misfit(self, key: t.DataType, value: t.DataType, queue: Queue) -> InvalidArgument | None:
        if (expected := _expected(queue.key)) and not isinstance(key, expected.types):
            return _refusal(queue, "key", queue.key, self.key, expected.words, key, expected.hint)
        if queue.value == "json":
            for path, found in _unfit(value, ""):
                where = f"{self.value!r}, field {path}" if path else repr(self.value)
                return InvalidArgument(
                    f"queue {queue.id!r}, codec json of values: column {where}: expected a type that is JSON, "
                    f"found {found.type}",
                    hint=found.remedy,
                )
        elif (expected := _expected(queue.value)) and not isinstance(value, (*expected.types, t.NullType)):
            return _refusal(queue, "value", queue.value, self.value, expected.words, value, expected.hint)
        return None


def _find(schema: t.StructType, name: str, what: str) -> t.DataType:
    found = [field.dataType for field in schema.fields if field.name == name]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(schema.fieldNames()) or "none"
    if found:
        raise InvalidArgument(f"{what}: expected one column {name!r}, found {len(found)} among: {columns}")
    raise InvalidArgument(f"{what}: the DataFrame has no column {name!r}; it has: {columns}")


@dataclass(frozen=True, slots=True)
class _Expected:
    types: tuple[type[t.DataType], ...]
    words: str
    hint: str


_BY_CODEC = {
    "str": _Expected((t.StringType,), "string", "cast(column as string)"),
    "int": _Expected(_WHOLE, "byte, short, integer or long", "cast(column as long)"),
    "bytes": _Expected((t.BinaryType,), "binary", "encode(column, 'UTF-8') for text"),
}


def _expected(codec: str) -> _Expected:
    return _BY_CODEC.get(codec) or _Expected((t.BinaryType,), "binary, encoded by the codec", _ENCODED)


def _refusal(
    queue: Queue, what: str, codec: str, column: str, expected: str, found: t.DataType, hint: str
) -> InvalidArgument:
    return InvalidArgument(
        f"queue {queue.id!r}, codec {codec} of {what}s: column {column!r}: expected {expected}, "
        f"found {found.simpleString()}",
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class _Unfit:
    type: str
    remedy: str


def _unfit(found: t.DataType, path: str) -> Iterator[tuple[str, _Unfit]]:
    """List the parts of a type that JSON cannot express, or that Spark and Python write differently."""
    if isinstance(found, t.StructType):
        names = found.fieldNames()
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield _below(path, name), _Unfit("several fields of this name", "rename all but one")
        for field in found.fields:
            yield from _unfit(field.dataType, _below(path, field.name))
    elif isinstance(found, t.ArrayType):
        yield from _unfit(found.elementType, f"{path}[]")
    elif isinstance(found, t.MapType):
        if not isinstance(found.keyType, t.StringType):
            kind = f"a map with keys of {found.keyType.simpleString()}"
            yield path, _Unfit(kind, "make its keys string: transform_keys(column, (k, v) -> cast(k as string))")
        yield from _unfit(found.valueType, f"{path}{{}}")
    elif not isinstance(found, _PLAIN_JSON):
        remedy = _REMEDIES.get(type(found), "cast it to string, a number, a struct, an array or a map")
        yield path, _Unfit(found.simpleString(), remedy)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
