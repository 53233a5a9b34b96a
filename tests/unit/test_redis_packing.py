"""Commands in Redis's protocol, as they are sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

hiredis = pytest.importorskip("hiredis")

from export_queue.core.sinks.redis import packing  # noqa: E402

words = st.one_of(st.binary(max_size=20), st.text(max_size=5), st.sampled_from([b"x" * 5000, b"y" * 70_000]))
commands = st.lists(st.lists(words, min_size=1, max_size=200).map(tuple), max_size=12)


@given(commands)
def test_commands_are_packed_as_by_the_clients_own_packer(sent):
    expected = b"".join(map(hiredis.pack_command, sent))
    assert b"".join(packing.pack(sent)) == expected
    assert b"".join(packing.pack([packing.packed(*command) for command in sent])) == expected


@given(st.lists(st.tuples(words, st.binary(max_size=9)), min_size=1, max_size=50))
def test_columns_become_the_same_commands(rows):
    keys = [key if isinstance(key, bytes) else key.encode() for key, _ in rows]
    values = [value for _, value in rows]
    columns = packing.pack_words(keys)
    assert [packing.word_of(word) for word in columns] == keys
    pairs = [word for pair in zip(keys, values, strict=True) for word in pair]
    expected = [("MSET", *pairs), ("DEL", *keys), ("SET", *pairs, "PX", "9")]
    sent = [
        packing.with_pairs(packing.packed("MSET"), columns, values),
        packing.with_words(packing.packed("DEL"), columns),
        packing.joined([packing.with_pairs(packing.packed("SET"), columns, values), packing.packed("PX", b"9")]),
    ]
    assert b"".join(packing.pack(sent)) == b"".join(map(hiredis.pack_command, expected))


@pytest.mark.parametrize(("count", "size"), [(5000, 10), (1000, 1000), (50, 10_000), (3, 5_000_000)])
def test_much_is_sent_in_chunks_of_which_none_is_much_larger_than_its_largest_value(count, size):
    keys, values = packing.pack_words([b"x" * 10] * count), [b"x" * size] * count
    chunks = list(packing.pack([("MULTI",), packing.with_pairs(packing.packed("MSET"), keys, values), ("EXEC",)]))
    assert max(map(len, chunks)) < size + (1 << 17)
    assert len(chunks) <= 8 + count * (size + 50) // (1 << 15) + 3 * count * (size > 1 << 16)
