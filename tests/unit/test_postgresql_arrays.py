"""Arrays in PostgreSQL's binary form are those that the driver itself makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer

from export_queue.core.postgresql_arrays import BooleanArray, TextArray

texts = st.text(max_size=20) | st.just("x" * 5000)


def by_driver(items: list[object]) -> bytes:
    found = Transformer().get_dumper(items, PyFormat.BINARY).dump(items)
    assert found is not None
    return bytes(found)


@given(st.lists(texts | st.none(), min_size=1).filter(any))
def test_texts_are_packed_as_the_driver_packs_them(items):
    assert TextArray.of([None if item is None else item.encode() for item in items]).sent == by_driver(items)


@given(st.lists(st.booleans(), min_size=1))
def test_truth_values_are_packed_as_the_driver_packs_them(items):
    assert BooleanArray.of(items).sent == by_driver(items)
