"""Keys and values on the command line: read with the codecs of their queue or table, and shown as text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import orjson
import typer

from export_queue.core.cli.console import bytes_of_hex, text_of_bytes
from export_queue.core.client import Store
from export_queue.core.errors import CodecError, InvalidArgument
from export_queue.core.queue import Queue

KeyHex = Annotated[str | None, typer.Option(help="a key that is not text, as hexadecimal digits")]


def chosen_key(store: Store, queue_id: str, key: str | None, key_hex: str | None) -> Any:
    """Decode a key from the command line with the queue's codec."""
    if (key is None) == (key_hex is None):
        raise typer.BadParameter("which key? give it as text, or by --key-hex")
    raw = key.encode() if key is not None else bytes_of_hex(key_hex or "")
    try:
        return store.queue(queue_id).decode_key(raw)
    except CodecError:
        codec = store.queue(queue_id).key
        raise InvalidArgument(f"keys of queue {queue_id!r} have the codec {codec}, which cannot read {raw!r}") from None


def given_value(queue: Queue, text: str | None, *, delete: bool) -> Any:
    """Decode a value from the command line with the queue's codec; None for a delete.

    :param text: what the queue would store; ``-`` stands for the standard input, which is taken byte by byte.
    """
    if (text is None) != delete:
        raise typer.BadParameter("which value? give VALUE, - for standard input, or --delete")
    if text is None:
        return None
    raw = sys.stdin.buffer.read() if text == "-" else text.encode()
    is_json = queue.value == "json"
    try:
        value = queue.decode_value(raw)
    except CodecError:
        raise InvalidArgument(
            f"values of queue {queue.id!r} have the codec {queue.value}, which cannot read these {len(raw)} bytes",
            hint="quote JSON for the shell, and text in it: '{\"total\": 3}', '\"text\"'" if is_json else None,
        ) from None
    if value is None:
        raise InvalidArgument("this value stands for a delete", hint="give --delete instead of a value")
    return value


def plain_value(value: Any) -> Any:
    """Return a value for JSON: bytes become text."""
    return text_of_bytes(value) if isinstance(value, bytes) else value


def shown_value(value: Any) -> Any:
    """Return a plain value for a cell of a table: collections become JSON."""
    return orjson.dumps(value, default=str).decode() if isinstance(value, dict | list) else value
