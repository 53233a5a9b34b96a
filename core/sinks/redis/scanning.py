"""Reading records back: the ranks of a page of a hash, and the documents of its records.

With the guard ``fence`` there are no ranks; then the keys of the database are listed instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import StoredRecords
from export_queue.core.sinks.redis.connection import Reply
from export_queue.core.sinks.redis.layout import RESERVED, affixes_of
from export_queue.core.sinks.redis.packing import Command, word_of
from export_queue.core.sinks.redis.targets import Target

Ask = Callable[[Sequence[tuple[bytes, Command]]], list[Reply]]
"""Sends commands, each to the server of a key, and returns the replies; an error about a key's type is a reply."""
HashesOf = Callable[[Sequence[bytes], Sequence[bytes]], Sequence[bytes]]
"""Returns the hashes that hold the ranks of records, given their ids and keys."""
AT_ONCE = 50
"""Number of hashes whose pages are read together."""
_PAGE = "500"
"""Approximate number of fields of a hash, or of keys, that are read together."""
_GLOB = re.compile(rb"[\\*?\[\]]")


def scan_ranks(ask: Ask, names: Sequence[bytes], templates: Sequence[str], target: Target) -> Iterator[StoredRecords]:
    """Read all records whose ranks are in some hashes, and whose keys fit templates.

    :param names: names of the hashes.
    :param templates: key templates with only ``$id`` left.
    """
    for start in range(0, len(names), AT_ONCE):
        cursors = dict.fromkeys(names[start : start + AT_ONCE], b"0")
        while cursors:
            pages = ask([(name, ("HSCAN", name, cursor, "COUNT", _PAGE)) for name, cursor in cursors.items()])
            found: list[tuple[str, bytes, int]] = []
            following: dict[bytes, bytes] = {}
            for name, page in zip(cursors, pages, strict=True):
                cursor, pairs = page
                found += _ranked(pairs, templates, target)
                if cursor != b"0":
                    following[name] = cursor
            cursors = following
            if found:
                yield _with_documents(ask, found, target)


def _ranked(pairs: Sequence[bytes], templates: Sequence[str], target: Target) -> Iterator[tuple[str, bytes, int]]:
    for template in templates:
        before, after = affixes_of(template)
        for field, rank in zip(pairs[::2], pairs[1::2], strict=True):
            record = target.id_of_field(field, before, after)
            if record is not None and len(rank) == 20:
                yield template, record, int(rank)


def scan_keys(ask: Ask, templates: Sequence[str], target: Target) -> Iterator[StoredRecords]:
    """Read all records of a single server whose keys fit templates, without ranks."""
    for template in templates:
        before, after = affixes_of(template)
        pattern, cursor = _escaped(before) + b"*" + _escaped(after), b"0"
        while True:
            ((cursor, keys),) = ask([(b"", ("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE))])
            fitting = [key for key in keys if len(key) >= len(before) + len(after) and not key.startswith(RESERVED)]
            replies = ask([(key, command) for key in fitting for command in target.listing(key)])
            found = [(template, record, -1) for record in target.ids_of(fitting, before, after, replies)]
            if found:
                yield _with_documents(ask, found, target)
            if cursor == b"0":
                break


def _escaped(text: bytes) -> bytes:
    return _GLOB.sub(rb"\\\g<0>", text)


def _with_documents(ask: Ask, found: Sequence[tuple[str, bytes, int]], target: Target) -> StoredRecords:
    templates, ids = [template for template, _, _ in found], [record for _, record, _ in found]
    reads = _reads(templates, ids, target)
    return StoredRecords(templates, ids, [rank for _, _, rank in found], list(map(target.document_of, ask(reads))))


def look_up(ask: Ask, template: str, ids: Sequence[bytes], target: Target, hashes: HashesOf | None) -> StoredRecords:
    """Read records, each with the rank of its document.

    Every write changes the rank, but for repairs, which write what belongs to the rank. So a document belongs to a rank
    that is the same before and after it was read.

    :param hashes: returns the hash that holds each record's rank; None if there are no ranks.
    """
    templates = [template] * len(ids)
    reads = _reads(templates, ids, target)
    if hashes is None:
        return StoredRecords(templates, ids, [-1] * len(ids), list(map(target.document_of, ask(reads))))
    located = target.locate(_deletes(templates, ids))
    fields = list(map(word_of, located.fields))
    names = hashes(ids, list(map(word_of, located.keys)))
    ranks = [-1] * len(ids)
    documents: list[bytes | None] = [None] * len(ids)
    pending: Sequence[int] = range(len(ids))
    while pending:
        commands: list[tuple[bytes, Command]] = []
        for i in pending:
            rank: tuple[bytes, Command] = (names[i], ("HGET", names[i], fields[i]))
            commands += [rank, reads[i], rank]
        replies = ask(commands)
        changed = []
        for n, i in enumerate(pending):
            before, document, after = replies[3 * n : 3 * n + 3]
            if before != after:
                changed.append(i)
            else:
                ranks[i], documents[i] = -1 if before is None else int(before), target.document_of(document)
        pending = changed
    return StoredRecords(templates, ids, ranks, documents)


def _reads(templates: Sequence[str], ids: Sequence[bytes], target: Target) -> list[tuple[bytes, Command]]:
    records = target.locate(_deletes(templates, ids))
    keys, members = list(map(word_of, records.keys)), list(map(word_of, records.members))
    return [(key, target.read(key, members[i] if members else b"")) for i, key in enumerate(keys)]


def _deletes(templates: Sequence[str], ids: Sequence[bytes]) -> Operations:
    n = len(ids)
    return Operations(templates, ids, [None] * n, [0] * n, range(n))
