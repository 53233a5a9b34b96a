"""The lines of a bulk request, and operations that would make the server refuse or misread all of them (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import orjson

from export_queue.core.sinks.batch import Reasons, refuse_lengths
from export_queue.core.sinks.elasticsearch.indices import RESERVED
from export_queue.core.sinks.operations import Operations

MAX_ID_BYTES = 512
"""The server refuses a whole request if one id is longer."""
MAX_DOCUMENT_BYTES = (1 << 31) - 1

NEWER, AS_NEW = b"external", b"external_gte"
"""The server writes a document of a higher rank only, or also one of an equal rank."""
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
"""Bytes that JSON does not escape."""
_SUSPECT = (RESERVED.encode(), b"\\u")
"""A document without both of these cannot have the reserved field."""


def refuse(operations: Operations, reasons: Reasons) -> None:
    """Refuse ids and documents that would affect other lines of the request."""
    refuse_lengths(operations, reasons, id_bytes=MAX_ID_BYTES, document_bytes=MAX_DOCUMENT_BYTES)
    if not all(operations.ids):
        for i, record in enumerate(operations.ids):
            if not record:
                reasons.setdefault(i, "the id is empty")
    try:
        b"\n".join(operations.ids).decode()
    except UnicodeDecodeError:
        for i, record in enumerate(operations.ids):
            _refuse_id(i, record, reasons)
    together = b"".join(filter(None, operations.documents))
    suspect = any(mark in together for mark in (b"\n", *_SUSPECT))
    for i, document in enumerate(operations.documents):
        if document is not None and (suspect or document[:1] != b"{"):
            reason = refuse_document(document)
            if reason:
                reasons.setdefault(i, reason)


def refuse_document(document: bytes) -> str | None:
    """Return why a document cannot be a line of a bulk request; None if it can."""
    if b"\n" in document:
        # the server would read the rest as another line, such as a delete of another record
        return "the document holds a line break: expected JSON in one line"
    if document.lstrip(b" \t\r")[:1] != b"{":
        return "the document is no JSON object"
    if not any(mark in document for mark in _SUSPECT):
        return None  # the server reports it if it is not JSON
    try:
        fields = _parsed(document)
    except ValueError as error:
        return f"the document is not JSON: {error}"
    # a dotted name is a path
    if any(name == RESERVED or name.startswith(f"{RESERVED}.") for name in fields):
        return f"the document has the field {RESERVED}, which is the sink's own"
    return None


def lines_of(operations: Operations, version_type: bytes = NEWER) -> list[bytes]:
    """Return the lines of each operation: the action, and the document or tombstone.

    :param version_type: :data:`NEWER` or :data:`AS_NEW`.
    """
    versions = operations.ranks()
    return [
        b'{"index":{"_id":%b,"version":%d,"version_type":"%b"}}\n%b\n'
        % (
            record,
            version,
            version_type,
            b'{"%b":{"seq":%d,"deleted":true}}' % (RESERVED.encode(), version >> 1) if document is None else document,
        )
        for record, version, document in zip(_quoted(operations.ids), versions, operations.documents, strict=True)
    ]


def _quoted(ids: Sequence[bytes]) -> list[bytes]:
    if _PLAIN.fullmatch(b"".join(ids)):
        return [b'"%b"' % record for record in ids]
    return [orjson.dumps(record.decode()) for record in ids]


def _refuse_id(position: int, record: bytes, reasons: Reasons) -> None:
    try:
        record.decode()
    except UnicodeDecodeError as error:
        reasons.setdefault(position, f"the id is not UTF-8 (byte {error.start})")


def _parsed(document: bytes) -> dict[str, object]:
    try:
        parsed: dict[str, object] = orjson.loads(document)
    except orjson.JSONDecodeError:
        parsed = json.loads(document)  # the server accepts lone surrogates, as this parser does
    return parsed
