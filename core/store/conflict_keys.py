"""Conflict keys as bytes and as readable text; no I/O."""

from __future__ import annotations

import struct

from export_queue.core.errors import ConflictError

_NUMBER = struct.Struct(">cQ")
_LENGTH = struct.Struct(">H")


def row_key(table: int, row: bytes) -> bytes:
    """Make the conflict key of a row."""
    return _NUMBER.pack(b"r", table) + row


def cell_key(table: int, row: bytes, column: bytes) -> bytes:
    """Make the conflict key of a cell; the length keeps (ab, c) apart from (a, bc)."""
    return _NUMBER.pack(b"c", table) + _LENGTH.pack(len(row)) + row + column


def entry_key(queue: int, key: bytes) -> bytes:
    """Make the conflict key of an entry that was added exclusively."""
    return _NUMBER.pack(b"q", queue) + key


def notification_key(table: int, row: bytes, column: bytes) -> bytes:
    """Make the conflict key of a notification that one observer's transaction handles."""
    return _NUMBER.pack(b"n", table) + _LENGTH.pack(len(row)) + row + column


def participant_key(name: str, key: bytes) -> bytes:
    """Make the conflict key of a participant's write."""
    encoded = name.encode()
    return _NUMBER.pack(b"p", 0) + _LENGTH.pack(len(encoded)) + encoded + key


def cells_of_key(key: bytes) -> tuple[int, bytes, bytes | None] | None:
    """Return table number, row and column of a conflict key, with None for the whole row; None if it has no cells."""
    kind, number = _NUMBER.unpack_from(key)
    rest = key[_NUMBER.size :]
    if kind == b"r":
        return number, rest, None
    if kind == b"c":
        length = _LENGTH.unpack_from(rest)[0]
        return number, rest[2 : 2 + length], rest[2 + length :]
    return None


def number_of(key: bytes) -> int:
    """Return the number of the table or queue in a conflict key; 0 in a participant's."""
    return int(_NUMBER.unpack_from(key)[1])


def show_key(key: bytes, name: str | None) -> str:
    """Make a conflict key readable, with the name or the number of its table or queue."""
    kind, number = _NUMBER.unpack_from(key)
    shown = name or number
    rest = key[_NUMBER.size :]
    if kind in (b"c", b"n", b"p"):
        length = _LENGTH.unpack_from(rest)[0]
        row, column = rest[2 : 2 + length], rest[2 + length :]
        if kind == b"p":
            return f"participant {_text(row)}: {_text(column)}"
        what = "notification of table" if kind == b"n" else "table"
        return f"{what} {shown}: {_text(row)}/{_text(column)}"
    return f"{'table' if kind == b'r' else 'queue'} {shown}: {_text(rest)}"


def _text(part: bytes) -> str:
    return part.decode("utf-8", "backslashreplace")


def conflict_error(transaction: int | None, key: bytes, writer: int, *, name: str | None) -> ConflictError:
    """Build the error for a conflict key that another transaction wrote."""
    return ConflictError.between(transaction=transaction, key=show_key(key, name), other=writer)
