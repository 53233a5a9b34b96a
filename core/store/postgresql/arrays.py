"""Arrays as PostgreSQL's binary protocol has them.

psycopg finds the type of each item of a list anew, which costs more than the rest of a commit's client side, and gives
arrays of small and of large numbers different types, and so different prepared statements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_BYTEA, _INT4, _INT8 = 17, 23, 20
_HEADER = struct.Struct(">iiIii")
"""Dimensions, whether it holds null, the items' type, how many there are, the first one's number."""
_EMPTY = struct.Struct(">iiI")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class _Array:
    """An array ready to be sent."""

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
        """Take values; None is null."""
        parts = [_HEADER.pack(1, None in items, _BYTEA, len(items), 1)]
        for item in items:
            if item is None:
                parts.append(_NULL)
            else:
                parts += (_LENGTH.pack(len(item)), item)
        return cls(b"".join(parts))


class IntArray(_Array):
    """``integer[]``."""

    __slots__ = ()
    oid = 1007

    @classmethod
    def of(cls, numbers: Sequence[int]) -> IntArray:
        """Take numbers of 32 bits."""
        flat = [4] * (2 * len(numbers))
        flat[1::2] = numbers
        return cls(_HEADER.pack(1, 0, _INT4, len(numbers), 1) + struct.pack(f">{len(flat)}i", *flat))


class BigintArray(_Array):
    """``bigint[]``."""

    __slots__ = ()
    oid = 1016

    @classmethod
    def of(cls, numbers: Sequence[int]) -> BigintArray:
        """Take numbers of 64 bits."""
        if not numbers:
            return NO_BIGINTS
        flat = [8] * (2 * len(numbers))
        flat[1::2] = numbers
        return cls(_HEADER.pack(1, 0, _INT8, len(numbers), 1) + struct.pack(">" + "iq" * len(numbers), *flat))


NO_BYTEAS = ByteaArray(_EMPTY.pack(0, 0, _BYTEA))
NO_INTS = IntArray(_EMPTY.pack(0, 0, _INT4))
NO_BIGINTS = BigintArray(_EMPTY.pack(0, 0, _INT8))


class Packed(_Array):
    """Any argument ready to be sent, whose type the server finds by its place."""

    __slots__ = ()
    oid = 0


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return obj.sent  # type: ignore[no-any-return]


_DUMPERS = {
    kind: type(f"{kind.__name__}Dumper", (_PackedDumper,), {"oid": kind.oid})
    for kind in (ByteaArray, IntArray, BigintArray, Packed)
}


def numbers_of(array: bytes) -> tuple[int, ...]:
    """Read a ``bigint[]`` that a server has sent."""
    count = (len(array) - _HEADER.size) // 12
    return struct.unpack(">" + "iq" * count, array[_HEADER.size :])[1::2] if count > 0 else ()


def register_arrays(adapters: AdaptersMap) -> None:
    """Let a connection take these as arguments.

    :param adapters: the connection's.
    """
    for kind, dumper in _DUMPERS.items():
        adapters.register_dumper(kind, dumper)


register_arrays(psycopg.adapters)  # for all connections to come
