"""Codecs encode keys, rows and values as bytes and decode them. They are chosen by name or import path.

=========  ================================  ===============================================================
name       accepts                           stores
=========  ================================  ===============================================================
``bytes``  bytes; as rows also text          the bytes; UTF-8 for text
``str``    text                              UTF-8
``int``    a whole number                    decimal digits; as rows, 8 bytes that sort like the numbers
``json``   what :mod:`.json_text` encodes    JSON; for values only, because equal values may differ as text
=========  ================================  ===============================================================

An import path ``module:name`` leads to an object with ``encode(value) -> bytes`` and ``decode(bytes) -> value``.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import orjson

from export_queue.core.callables import check_methods, returned
from export_queue.core.errors import CodecError, InvalidArgument
from export_queue.core.json_text import NotJson, json_bytes
from export_queue.core.references import import_object
from export_queue.core.retry import is_transient

MAX_KEY_BYTES = 1024
"""The longest key, row or column, encoded."""
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes values of users as bytes and decodes them; both functions may raise any error."""

    name: str
    encode: Callable[[Any], bytes]
    """Raises :class:`Refused` for a value that the codec does not accept."""
    decode: Callable[[bytes], Any]


class Refused(ValueError):
    """A codec does not accept a value. The text says why, and does not show the value."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class _NotRun(CodecError):
    """The result of a user's function shows that it has not run."""


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise Refused(f"expected bytes, found {type(value).__name__}")
    return memoryview(value).tobytes()  # not bytes(value), which a subclass may override


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise Refused(f"expected str, found {type(value).__name__}")
    try:
        return str.encode(value)  # not str(value), which is the name of an enum's member
    except UnicodeEncodeError as error:
        raise Refused(
            f"expected text, found half a character (a lone surrogate) at position {error.start}",
            hint="repair the text: text.encode('utf-8', 'replace').decode(); bytes of any kind need the codec 'bytes'",
        ) from None


def _whole(value: Any) -> int:
    if not isinstance(value, bool):
        with contextlib.suppress(Exception):  # raised by the value's own method
            return operator.index(value)
    raise Refused(f"expected a whole number, found {type(value).__name__}")


def _digits(value: Any) -> bytes:
    number = _whole(value)
    try:
        return b"%d" % number
    except ValueError:
        raise Refused("expected a whole number of at most some thousand digits, found a longer one") from None


def _ordered(value: Any) -> bytes:
    number = _whole(value)
    if number not in _INT64:
        raise Refused("expected a whole number of 64 bits, found a larger one")
    return (number + (1 << 63)).to_bytes(8, "big")


def _from_ordered(raw: bytes) -> int:
    if len(raw) != 8:
        raise ValueError(f"expected 8 bytes, found {len(raw)}")
    return int.from_bytes(raw, "big") - (1 << 63)


def _json(value: Any) -> bytes:
    try:
        return json_bytes(value)
    except NotJson as error:
        raise Refused(f"expected a JSON value, but {error.misfit}", hint=error.misfit.remedy) from error


_BYTES = Codec("bytes", _bytes, bytes)
_TEXT = Codec("str", _text, bytes.decode)
_INT = Codec("int", _digits, int)
KEYS: Mapping[str, Codec] = {"bytes": _BYTES, "int": _INT, "str": _TEXT}
"""Codecs of keys of queues. Sinks use the bytes as ids."""
ROWS: Mapping[str, Codec] = {"bytes": _BYTES, "int": Codec("int", _ordered, _from_ordered), "str": _TEXT}
"""Codecs of rows of tables. A scan sorts rows by their bytes."""
VALUES: Mapping[str, Codec] = {"bytes": _BYTES, "int": _INT, "json": Codec("json", _json, orjson.loads), "str": _TEXT}


def find_codec(name: str, known: Mapping[str, Codec]) -> Codec:
    """Return a codec by name or import path.

    :raises CodecError: the import path does not lead to a codec.
    """
    try:
        return known[name]
    except KeyError:
        return _imported(name)


def check_codec(what: str, name: str, known: Mapping[str, Codec]) -> str:
    """Check the name of a codec, and return it.

    :raises InvalidArgument: there is no codec of this name; the error lists the names.
    :raises CodecError: the import path does not lead to a codec.
    """
    if not isinstance(name, str) or (name not in known and ":" not in name):
        raise InvalidArgument(
            f"{what}: expected one of {sorted(known)} or an import path 'module:name', found {name!r}",
            hint="equal values may differ as JSON: a key or row is str, int or bytes" if name == "json" else None,
        )
    find_codec(name, known)
    return name


_HINT = (
    "a codec is an object with encode(value) -> bytes and decode(bytes) -> value; its module must be importable "
    "wherever the store is used, on Spark's executors too"
)


@lru_cache(maxsize=256)
def _imported(path: str) -> Codec:
    found = import_object(path, error=CodecError, hint=_HINT)
    encode, decode = getattr(found, "encode", None), getattr(found, "decode", None)
    if not (callable(encode) and callable(decode)):
        raise CodecError(f"codec {path}: expected an object with encode and decode, found {type(found).__name__}")
    check_methods(found, ("encode", "decode"), f"codec {path}", error=CodecError)

    def checked(value: Any) -> bytes:
        try:
            encoded = returned(encode(value), f"encode() of codec {path}", error=_NotRun)
        except _NotRun as error:
            raise Refused(error.message, hint=error.hint) from None
        except Exception as error:
            if is_transient(error):
                raise
            raise Refused(f"the codec {path} refuses it with {type(error).__name__}") from error
        if type(encoded) is not bytes:
            raise Refused(f"expected bytes of the codec {path}, found {type(encoded).__name__}")
        return encoded

    def decoded(raw: bytes) -> Any:
        return returned(decode(raw), f"decode() of codec {path}", error=_NotRun)

    return Codec(path, checked, decoded)


def raise_undecodable(codec: Codec, raw: bytes, what: str, error: Exception) -> NoReturn:
    """Raise a :class:`CodecError` for an error of a codec that should decode stored bytes; keep transient errors.

    :param what: names the subject in the error; its value is not shown.
    """
    if is_transient(error):
        raise error
    if isinstance(error, _NotRun):
        raise CodecError(f"{what}: {error.message}", hint=error.hint) from None
    kind = type(error).__name__
    raise CodecError(f"{what}: the codec {codec.name} cannot decode its {len(raw)} bytes: {kind}") from error
