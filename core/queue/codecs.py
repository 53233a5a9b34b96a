"""How keys and values become bytes; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from export_queue.core.errors import EntryError, InvalidArgument
from export_queue.core.json_text import NotJson, json_bytes

MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Codec:
    """Two functions between the values of users and the bytes of an entry."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _only(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise EntryError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _json(value: Any) -> bytes:
    try:
        return json_bytes(value)
    except NotJson as error:
        raise EntryError(f"expected a JSON value, but {error.misfit}", hint=error.misfit.remedy) from error


def _text(value: Any) -> bytes:
    try:
        return str(_only(str, value)).encode()
    except UnicodeEncodeError as error:
        raise EntryError(
            f"expected text, found half a character (a lone surrogate) at position {error.start}",
            hint="repair the text: text.encode('utf-8', 'replace').decode(); bytes of any kind need the codec 'bytes'",
        ) from None


_BYTES = Codec(lambda value: bytes(_only(bytes, value)), bytes)
_TEXT = Codec(_text, bytes.decode)
KEY_CODECS = {"str": _TEXT, "bytes": _BYTES}
VALUE_CODECS = {"json": Codec(_json, orjson.loads), "str": _TEXT, "bytes": _BYTES}


def check_codec(what: str, name: str, known: dict[str, Codec]) -> str:
    """Check the name of a codec.

    :raises InvalidArgument: there is no such codec; the error names those that there are.
    """
    if name not in known:
        raise InvalidArgument(f"{what}: expected one of {sorted(known)}, found {name!r}")
    return name


def encode_key(codec: str, key: Any) -> bytes:
    """Encode an entry's key.

    :raises EntryError: the key is of another type, empty or too long.
    """
    try:
        encoded = KEY_CODECS[codec].encode(key)
    except EntryError as error:
        raise EntryError(f"key {key!a}: {error.message}", hint=error.hint) from error
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise EntryError(f"key: expected 1 to {MAX_KEY_BYTES} bytes, found {len(encoded)}: {str(key)[:60]!r}…")
    return encoded


def encode_value(codec: str, value: Any, *, most: int, key: Any) -> bytes | None:
    """Encode an entry's value; None stays None and means: the record is gone.

    :raises EntryError: the value is of another type or too large.
    """
    if value is None:
        return None
    try:
        encoded = VALUE_CODECS[codec].encode(value)
    except EntryError as error:
        raise EntryError(f"value of key {key!r}: {error.message}", hint=error.hint) from error
    if len(encoded) > most:
        raise EntryError(
            f"value of key {key!r}: expected at most {most} bytes, found {len(encoded)}",
            hint="give the queue a larger max_value_bytes (export-queue alter QUEUE --max-value-bytes …), "
            "or add a reference instead of the content",
        )
    return encoded
