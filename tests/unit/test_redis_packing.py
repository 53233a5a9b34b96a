"""Commands in Redis's protocol, as they are sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

hiredis = pytest.importorskip("hiredis")

from export_queue.core.sinks.redis.connection import pack  # noqa: E402

words = st.one_of(st.binary(max_size=20), st.text(max_size=5), st.sampled_from([b"x" * 5000, b"y" * 70_000]))
commands = st.lists(st.lists(words, min_size=1, max_size=200).map(tuple), max_size=12)


@given(commands)
def test_commands_are_packed_as_by_the_clients_own_packer(sent):
    assert b"".join(pack(sent)) == b"".join(map(hiredis.pack_command, sent))


@pytest.mark.parametrize(("count", "size"), [(5000, 10), (1000, 1000), (50, 10_000), (3, 5_000_000)])
def test_much_is_sent_in_pieces_of_which_none_is_much_larger_than_its_largest_value(count, size):
    pieces = pack([("MULTI",), ("MSET", *[b"x" * size] * (2 * count)), ("EXEC",)])
    assert max(map(len, pieces)) < size + (1 << 17)
    assert len(pieces) <= 8 + 2 * count * (size + 10) // (1 << 15) + 6 * count * (size > 1 << 16)
