"""Parts of commands that are longer than Redis or a server takes (``proto-max-bulk-len``): found before they are sent.

A server that is sent one hangs up: nothing would tell which record of a batch is to blame. The limit is told by no
command that every user may give; but a bit beyond it is refused by ``GETBIT``, whatever the key holds.
"""

from __future__ import annotations

from collections.abc import Callable

from export_queue.core.errors import SinkRefused
from export_queue.core.sinks.batch import Reasons, refuse_lengths
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.redis.layout import MAX_BYTES
from export_queue.core.sinks.redis.packing import word_of
from export_queue.core.sinks.redis.servers import Servers
from export_queue.core.sinks.redis.targets import Target

SURE = 1 << 20
"""Bytes that every server takes: no lower limit can be set."""
_REFUSAL = "bit offset"


def refuse_long(servers: Callable[[], Servers], target: Target, operations: Operations, reasons: Reasons) -> None:
    """Refuse operations with a part that their server does not take.

    :param servers: gives the servers, which are asked only where operations are long.
    :param operations: the batch, collections replaced by templates of keys.
    :raises SinkUnavailable: a server does not answer.
    """
    longest_document = max(map(len, filter(None, operations.documents)), default=0)
    if longest_document + max(map(len, operations.ids), default=0) <= SURE:
        return
    refuse_lengths(operations, reasons, id_bytes=MAX_BYTES // 2, document_bytes=MAX_BYTES)
    for i, (record, document) in enumerate(zip(operations.ids, operations.documents, strict=True)):
        if len(record) + len(document or b"") <= SURE or i in reasons:
            continue
        key = word_of(target.locate(operations.take([i])).keys[0])
        longest = max(len(key), target.longest_part(record, document))
        if longest > SURE and not _takes(servers(), key, longest):
            reasons[i] = f"{longest} bytes in one piece are more than the server takes (proto-max-bulk-len)"


def _takes(servers: Servers, key: bytes, length: int) -> bool:
    try:
        servers.ask(key, ("GETBIT", key, str(8 * (length - 1))))
    except SinkRefused as error:
        # any other refusal, of a right or because the key is no string, says nothing about lengths
        return _REFUSAL not in str(error)
    return True
