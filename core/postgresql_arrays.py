"""Arrays in PostgreSQL's binary protocol; the store and the SQL sink use them.

psycopg looks up the type of each item of a list. With its lists and its cursor, a transaction that reads and writes
takes about 1.6 times as long (medians of pairs, without flushes). It also sends small and large numbers as different
array types, which leads to different prepared statements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_BOOL, _BYTEA, _INT8, _INT4, _TEXT = 16, 17, 20, 23, 25
_HEADER = struct.Struct(">iiIii")
"""Number of dimensions, whether there are nulls, type of the items, their number, index of the first one."""
_EMPTY = struct.Struct(">iiI")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)
_LENGTHS = [_LENGTH.pack(length) for length in range(4096)]
"""Encoded lengths of short items."""
_FALSE, _TRUE = _LENGTH.pack(1) + b"\0", _LENGTH.pack(1) + b"\1"


class _Array:
    """An encoded array."""

    __slots__ = ("sent",)
    oid: ClassVar[int]

    def __init__(self, sent: bytes) -> None:
        self.sent = sent


class ByteaArray(_Array):
    """``bytea[]``."""

    __slots__ = ()
    oid = 1001

    @classmethod
    def of(cls, items: Sequence[bytes | None]) -> ByteaArray:
        """Encode bytes; None is null."""
        parts = [_HEADER.pack(1, None in items, _BYTEA, len(items), 1)]
        for item in items:
            if item is None:
                parts.append(_NULL)
            else:
                parts += (_LENGTH.pack(len(item)), item)
        return cls(b"".join(parts))


class TextArray(_Array):
    """``text[]``."""

    __slots__ = ()
    oid = 1009

    @classmethod
    def of(cls, items: Sequence[bytes | None]) -> TextArray:
        """Encode text that is in UTF-8 already; None is null."""
        has_null = None in items
        known = [item or b"" for item in items] if has_null else items
        sizes = list(map(len, known))  # type: ignore[arg-type]
        if max(sizes, default=0) < len(_LENGTHS):
            heads = [_LENGTHS[size] for size in sizes]
        else:
            heads = list(map(_LENGTH.pack, sizes))
        if has_null:
            heads = [_NULL if item is None else head for item, head in zip(items, heads, strict=True)]
        parts: list[Any] = [_HEADER.pack(1, has_null, _TEXT, len(items), 1)] * (1 + 2 * len(items))
        parts[1::2], parts[2::2] = heads, known
        return cls(b"".join(parts))


class BooleanArray(_Array):
    """``boolean[]``."""

    __slots__ = ()
    oid = 1000

    @classmethod
    def of(cls, items: Sequence[bool]) -> BooleanArray:
        """Encode booleans."""
        sent = b"".join([_TRUE if item else _FALSE for item in items])
        return cls(_HEADER.pack(1, 0, _BOOL, len(items), 1) + sent)


class IntArray(_Array):
    """``integer[]``."""

    __slots__ = ()
    oid = 1007

    @classmethod
    def of(cls, numbers: Sequence[int]) -> IntArray:
        """Encode numbers of 32 bits."""
        flat = [4] * (2 * len(numbers))
        flat[1::2] = numbers
        return cls(_HEADER.pack(1, 0, _INT4, len(numbers), 1) + struct.pack(f">{len(flat)}i", *flat))


class BigintArray(_Array):
    """``bigint[]``."""

    __slots__ = ()
    oid = 1016

    @classmethod
    def of(cls, numbers: Sequence[int]) -> BigintArray:
        """Encode numbers of 64 bits."""
        if not numbers:
            return NO_BIGINTS
        flat = [8] * (2 * len(numbers))
        flat[1::2] = numbers
        return cls(_HEADER.pack(1, 0, _INT8, len(numbers), 1) + struct.pack(">" + "iq" * len(numbers), *flat))


NO_BYTEAS = ByteaArray(_EMPTY.pack(0, 0, _BYTEA))
NO_BIGINTS = BigintArray(_EMPTY.pack(0, 0, _INT8))


class Packed(_Array):
    """Any encoded argument, whose type the server infers from its position."""

    __slots__ = ()
    oid = 0


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return obj.sent  # type: ignore[no-any-return]


_DUMPERS = {
    kind: type(f"{kind.__name__}Dumper", (_PackedDumper,), {"oid": kind.oid})
    for kind in (BigintArray, BooleanArray, ByteaArray, IntArray, Packed, TextArray)
}


def numbers_of(array: bytes) -> tuple[int, ...]:
    """Decode a ``bigint[]``."""
    count = (len(array) - _HEADER.size) // 12
    return struct.unpack(">" + "iq" * count, array[_HEADER.size :])[1::2] if count > 0 else ()


PLAIN = AdaptersMap(psycopg.adapters)
"""The driver's own adapters, which are independent of what a program registers later."""
for _kind, _dumper in _DUMPERS.items():
    PLAIN.register_dumper(_kind, _dumper)
