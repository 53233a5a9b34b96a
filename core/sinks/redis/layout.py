"""How records and their ranks lie in Redis, and which commands move them (pure).

============================  ==============================================================================
key                           holds
============================  ==============================================================================
the user's                    a string, or a plain set of members
``xq:control``                hash: how many shards the ranks have, and the number of this layout
``xq:queue:<queue>``          hash: the queue's control record
``xq:rank:<shard>``           hash: key of a string → its rank
``xq:member:<shard>``         hash: key of a set, NUL, member → its rank
============================  ==============================================================================

A rank is 20 decimal digits, compared as text: servers and scripts that take numbers for doubles cannot
blur it. An even rank is a tombstone. The shard follows from the record's id alone, by the function that
also gives the bucket of a queue's key, so that drains of different units do not meet where ids are keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.queue import bucket
from export_queue.core.sinks.batch import Reasons
from export_queue.core.sinks.control import ControlRecord
from export_queue.core.sinks.operations import Operations

Command = tuple[bytes, ...]
Target = Literal["string", "set"]

RESERVED = b"xq:"
CONTROL = b"xq:control"
LAYOUT = b"1"
DEFAULT_SHARDS = 1009
MAX_BYTES = 512 << 20
"""The longest string that Redis takes."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def check_template(template: str) -> None:
    """Check a template of keys.

    :raises SinkConfigurationError: no ``{id}``, several, another placeholder, or a key of ours.
    """
    names = _PLACEHOLDER.findall(template)
    if names.count("id") != 1 or set(names) - {"id", "collection"}:
        raise SinkConfigurationError(
            f"key template {template!r}: expected {{id}} once and, if wanted, {{collection}}; found {names}"
        )
    if template.encode().startswith(RESERVED):
        raise SinkConfigurationError(f"key template {template!r}: keys that begin with xq: belong to the sink")


def affixes(template: str, collection: str) -> tuple[bytes, bytes]:
    """Return what stands before and after the id in the keys of a collection."""
    before, _, after = template.replace("{collection}", collection).partition("{id}")
    return before.encode(), after.encode()


def refuse_collection(collection: str) -> str | None:
    """Say why a collection cannot be part of a key.

    Only plain names: ``a`` with the id ``b:c`` and ``a:b`` with the id ``c`` would be one key with two ranks.
    """
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", collection):
        return None
    return f"collection {collection!r}: expected 1 to 128 of letters, digits, _ . -"


@dataclass(frozen=True, slots=True)
class Records:
    """Operations on distinct records, ready to be compared with the ranks that Redis holds."""

    fields: Sequence[bytes]
    """The field of each operation's rank."""
    ranks: Sequence[bytes]
    operations: Operations
    keys: Sequence[bytes]
    members: Sequence[bytes] | None
    """Members of sets; None where the records are strings."""
    shards: Mapping[bytes, Sequence[int]]
    """Positions of operations by the hash that holds their ranks."""

    def halves(self) -> tuple[Records, Records] | None:
        """Cut by shards, for a second try that meets fewer others; None where there is one shard only."""
        names = list(self.shards)
        if len(names) < 2:
            return None
        middle = len(names) // 2
        return self._only(names[:middle]), self._only(names[middle:])

    def _only(self, names: Sequence[bytes]) -> Records:
        shards = {name: self.shards[name] for name in names}
        return Records(self.fields, self.ranks, self.operations, self.keys, self.members, shards)


class RecordLayout(Protocol):
    """Where records of one kind lie."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Note the operations that can never be taken."""

    def place(self, operations: Operations, shards: int) -> Records:
        """Say where the records and their ranks lie. Collections hold key templates, filled but for the id."""

    def reads(self, records: Records) -> list[Command]:
        """Commands beyond those for ranks, of which the replies are given to :meth:`refusals`."""

    def refusals(self, records: Records, replies: Sequence[object]) -> dict[bytes, str]:
        """Say why keys cannot be written."""

    def repeats(self) -> bool:
        """Tell whether an operation of the recorded rank is written once more."""

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """Commands that bring the records to what the operations say."""


class StringLayout:
    """Each record is a string: its document."""

    def refuse(self, operations: Operations, reasons: Reasons) -> None:
        """Refuse keys that are ours."""
        for template in set(operations.collections):
            before, _ = _split(template)
            if RESERVED.startswith(before[: len(RESERVED)]):
                _refuse_reserved(operations, reasons, template, before)

    def place(self, operations: Operations, shards: int) -> Records:
        """The key is the rank's field."""
        keys = _keys(operations.collections, operations.ids)
        names: dict[int, bytes] = {}
        return _placed(operations, keys, keys, None, shards, names, b"xq:rank:%d")

    def reads(self, records: Records) -> list[Command]:
        """Nothing: SET and UNLINK take keys of any type."""
        return []

    def refusals(self, records: Records, replies: Sequence[object]) -> dict[bytes, str]:
        """Nothing can be wrong."""
        return {}

    def repeats(self) -> bool:
        """No: a string and its rank always arrive together."""
        return False

    def writes(self, records: Records, positions: Sequence[int]) -> list[Command]:
        """One MSET for all puts, one UNLINK for all deletes."""
        put: list[bytes] = [b"MSET"]
        gone: list[bytes] = [b"UNLINK"]
        keys, documents = records.keys, records.operations.documents
        for i in positions:
            document = documents[i]
            if document is None:
                gone.append(keys[i])
            else:
                put += (keys[i], document)
        return [tuple(command) for command in (put, gone) if len(command) > 1]
