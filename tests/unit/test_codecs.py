"""Codecs: what each takes, stores and gives back, and how one's own is found and fails."""

from __future__ import annotations

import traceback
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import CodecError, EntryError, InvalidArgument
from export_queue.core.codecs import KEYS, ROWS, VALUES, Refused, check_codec, find_codec
from export_queue.core.queue import Queue
from export_queue.core.tables import cell_types


class Upper:
    """A codec as users write them."""

    def encode(self, value: str) -> bytes:
        return value.upper().encode()

    def decode(self, raw: bytes) -> str:
        return raw.decode().lower()


def refuse(_: object) -> Any:
    raise ValueError("holds the secret value")


def unplug(_: object) -> Any:
    raise ConnectionError("the registry is away")


upper = Upper()
no_bytes = SimpleNamespace(encode=str, decode=str)
failing = SimpleNamespace(encode=refuse, decode=refuse)
unplugged = SimpleNamespace(encode=unplug, decode=unplug)
half = SimpleNamespace(encode=str.encode)
HERE = __name__


class Colour(str, Enum):  # noqa: UP042  (its str() is not its value)
    RED = "red"


@pytest.mark.parametrize(
    ("known", "name", "value", "stored", "back"),
    [
        (KEYS, "str", "é", "é".encode(), "é"),
        (VALUES, "str", Colour.RED, b"red", "red"),
        (KEYS, "bytes", b"\xff", b"\xff", b"\xff"),
        (KEYS, "int", -77, b"-77", -77),
        (VALUES, "int", 1 << 100, b"1267650600228229401496703205376", 1 << 100),
        (ROWS, "int", 0, b"\x80\0\0\0\0\0\0\0", 0),
        (ROWS, "int", -1, b"\x7f\xff\xff\xff\xff\xff\xff\xff", -1),
        (VALUES, "json", {"a": [1, "é"]}, '{"a":[1,"é"]}'.encode(), {"a": [1, "é"]}),
        (VALUES, f"{HERE}:upper", "anna", b"ANNA", "anna"),
        (ROWS, f"{HERE}:Colour.RED", None, None, None),
    ],
)
def test_a_codec_gives_back_what_it_stored(known: Any, name: str, value: Any, stored: Any, back: Any) -> None:
    if stored is None:
        with pytest.raises(CodecError, match="expected an object with encode and decode, found Colour"):
            find_codec(name, known)
        return
    codec = find_codec(name, known)
    assert (codec.encode(value), codec.decode(stored)) == (stored, back)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_rows_of_numbers_are_in_the_order_of_the_numbers(numbers: list[int]) -> None:
    codec = ROWS["int"]
    assert [codec.decode(raw) for raw in sorted(map(codec.encode, numbers))] == sorted(numbers)


@pytest.mark.parametrize(
    ("known", "name", "value", "expected"),
    [
        (VALUES, "bytes", "x", "expected bytes, found str"),
        (VALUES, "str", b"x", "expected str, found bytes"),
        (VALUES, "str", "x\ud800", "half a character .* at position 1"),
        (VALUES, "int", True, "expected a whole number, found bool"),
        (VALUES, "int", 1.0, "expected a whole number, found float"),
        (VALUES, "int", "7", "expected a whole number, found str"),
        pytest.param(VALUES, "int", 10**5000, "some thousand digits", id="long"),
        (ROWS, "int", 1 << 63, "64 bits, found a larger one"),
        (VALUES, "json", {"a": {1}}, "expected a JSON value, but field a is of type set"),
        (VALUES, f"{HERE}:no_bytes", 1, f"expected bytes of the codec {HERE}:no_bytes, found str"),
        (VALUES, f"{HERE}:failing", 1, f"the codec {HERE}:failing refuses it with ValueError"),
    ],
)
def test_a_value_of_another_type_is_refused(known: Any, name: str, value: Any, expected: str) -> None:
    with pytest.raises(Refused, match=expected):
        find_codec(name, known).encode(value)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert VALUES["int"].encode(numpy.int32(7)) == b"7"
    assert ROWS["int"].encode(numpy.int64(7)) == ROWS["int"].encode(7)
    for other in (numpy.bool_(True), numpy.float64(1)):
        with pytest.raises(Refused, match="expected a whole number"):
            VALUES["int"].encode(other)


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [
        ("xml", InvalidArgument, "value: expected one of .*'json'.* or an import path 'module:name', found 'xml'"),
        (7, InvalidArgument, "found 7"),
        ("no.such:codec", CodecError, "no.such:codec cannot be imported"),
        (f"{HERE}:absent", CodecError, f"{HERE}:absent cannot be imported"),
        (f"{HERE}:half", CodecError, "expected an object with encode and decode, found SimpleNamespace"),
        ("a b:c", CodecError, "expected an import path"),
    ],
)
def test_a_codec_that_is_not_there_is_named(name: Any, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        check_codec("value", name, VALUES)


@pytest.mark.parametrize(
    ("codec", "raw"), [("json", b"secret"), ("int", b"secret"), ("str", b"secret\xff"), (f"{HERE}:failing", b"secret")]
)
def test_what_cannot_be_decoded_is_named_and_not_shown(codec: str, raw: bytes) -> None:
    with pytest.raises(
        CodecError, match=r"table 't': value of row 7, column 'n': the codec .* cannot decode"
    ) as raised:
        cell_types("t", "int", codec).decode_value(raw, 7, "n")
    assert codec in raised.value.message
    assert "secret" not in str(raised.value)


def test_an_error_of_a_connection_stays_one_that_passes() -> None:
    codec = find_codec(f"{HERE}:unplugged", VALUES)
    with pytest.raises(ConnectionError):
        codec.encode(1)
    with pytest.raises(ConnectionError):
        cell_types("t", "bytes", codec.name).decode_value(b"1", "r", "c")


def test_rows_of_bytes_take_text_and_columns_of_other_tables_are_text() -> None:
    plain, typed = cell_types("t", "bytes", "json"), cell_types("t", "str", "json")
    assert (plain.encode_row("é"), plain.encode_row(b"\xff")) == ("é".encode(), b"\xff")
    assert plain.decode_cell((b"r", b"\xff", b"1")) == (b"r", b"\xff", 1)
    assert typed.decode_cell((b"r", b"c", b"1")) == ("r", "c", 1)
    assert (typed.encode_column(b"c"), plain.encode_column(b"\xff")) == (b"c", b"\xff")
    with pytest.raises(InvalidArgument, match="column: expected text, found bytes that are not UTF-8"):
        typed.encode_column(b"\xff")
    with pytest.raises(InvalidArgument, match="row: expected str, found bytes"):
        typed.encode_row(b"r")


def test_an_error_about_a_value_does_not_show_it() -> None:
    with pytest.raises(InvalidArgument) as raised:
        cell_types("t", "str", "int").encode_value("hunter2", "anna", "n")
    assert "value of row 'anna', column 'n': expected a whole number, found str" in str(raised.value)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value)).replace('encode_value("hunter2"', "")


class Text(str):
    def encode(self, *_: Any) -> bytes:
        return b"a lie"

    def __len__(self) -> int:
        return 1


class Bytes(bytes):
    def __bytes__(self) -> bytes:
        return b"a lie"


def test_a_key_of_a_subclass_is_what_it_holds_not_what_it_says_of_itself() -> None:
    plain, typed = cell_types("t", "bytes", "bytes"), cell_types("t", "str", "json")
    for value in (Text("held"), Bytes(b"held")):
        assert plain.encode_row(value) == plain.encode_column(value) == b"held"
        assert type(plain.encode_row(value)) is bytes
    assert find_codec("bytes", KEYS).encode(Bytes(b"held")) == b"held"
    assert typed.encode_row(Text("held")) == b"held"
    for unfit in (bytearray(b"held"), 5):
        with pytest.raises(InvalidArgument, match=type(unfit).__name__):
            plain.encode_column(unfit)  # type: ignore[arg-type]


class Failing:
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __index__(self) -> int:
        raise RuntimeError("no number")


class FailingText(str):
    __repr__ = __str__ = Failing.__repr__


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ({"password": "hunter2"}, "key of type dict: expected"),
        ([b"x" * 1_000_000], "key of type list: expected"),
        (10**5000, "key of type int: expected"),
        (Failing(), "key of type Failing: expected"),
        (1.5, "key 1.5: expected"),
    ],
    ids=["dict", "list", "large", "failing", "float"],
)
@pytest.mark.parametrize("codec", ["str", "int", "bytes"])
def test_an_error_about_a_key_does_not_show_what_is_none(codec: str, key: Any, shown: str) -> None:
    with pytest.raises(EntryError) as refused:
        queue_of(codec).encode_key(key)
    assert shown in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("codec", "key"), [("int", "é" * 10_000), ("bytes", FailingText("a")), ("str", b"a" * 10_000), ("str", "a" * 2000)]
)
def test_an_error_about_a_key_shows_its_beginning(codec: str, key: Any) -> None:
    with pytest.raises(EntryError) as refused:
        queue_of(codec).encode_key(key)
    assert ascii(key[:1])[:-1] in str(refused.value) if type(key) is not FailingText else "'a'" in str(refused.value)
    assert len(str(refused.value)) < 600


def queue_of(codec: str) -> Queue:
    return Queue(
        id="q",
        number=1,
        layout=1,
        buckets=1,
        buckets_per_range=1,
        key=codec,
        value="json",
        max_value_bytes=1,
        exclusive=False,
        sink=None,
    )
