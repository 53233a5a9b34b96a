"""The rule of visibility, as a value (I1, I4)."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import InvalidArgument, Level, Transaction
from export_queue.core.store import Snapshot, pack_ids, unpack_ids


def transaction(**changes: object) -> Transaction:
    values = {
        "id": 50,
        "snapshot": Snapshot(49, (10, 20)),
        "write_pointers": (50, 60),
        "kind": "long",
        "deadline_ms": 1,
        "request": "00" * 16,
    }
    return Transaction(**{**values, **changes})  # type: ignore[arg-type]


def test_what_was_in_progress_at_the_start_is_not_visible() -> None:
    assert not transaction().is_visible(10)


def test_what_came_later_is_not_visible() -> None:
    assert not transaction().is_visible(51)


def test_what_was_committed_before_is_visible() -> None:
    assert transaction().is_visible(11)


def test_own_writes_are_visible_at_every_pointer() -> None:
    assert transaction().is_visible(50)
    assert transaction().is_visible(60)


def test_the_current_write_pointer_can_be_hidden() -> None:
    hidden = transaction(level=Level.SNAPSHOT_EXCLUDE_CURRENT)
    assert hidden.is_visible(50)
    assert not hidden.is_visible(60)


ids = st.integers(1, 2**62 - 1)


@given(
    st.builds(
        transaction,
        id=ids,
        snapshot=st.builds(Snapshot, ids, st.frozensets(ids).map(sorted).map(tuple)),
        write_pointers=st.lists(ids, min_size=1).map(tuple),
    )
)
def test_a_transaction_survives_the_way_through_json(value: Transaction) -> None:
    assert Transaction.from_json(value.to_json()) == value


sorted_ids = st.lists(ids, unique=True, max_size=20).map(sorted).map(tuple)


@given(ids, sorted_ids, sorted_ids, st.data())
def test_a_snapshot_shows_what_its_texts_for_sql_say(
    pointer: int, excluded: tuple[int, ...], write_pointers: tuple[int, ...], data: st.DataObject
) -> None:
    snapshot = Snapshot(pointer, excluded, write_pointers)
    version = data.draw(st.sampled_from([*excluded, *write_pointers, pointer, pointer + 1]) | ids)
    hidden, shown = (
        {int(text) for text in texts.split(",") if text}
        for texts in (snapshot.excluded_text, snapshot.write_pointers_text)
    )
    assert snapshot.is_visible(version) == (version in shown or (version <= pointer and version not in hidden))
    assert snapshot.is_visible(version) or version >= snapshot.low
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@given(st.sets(st.integers(min_value=1, max_value=(1 << 62) - 1), max_size=200))
def test_packed_ids_come_back(ids: set[int]) -> None:
    assert unpack_ids(pack_ids(sorted(ids))) == tuple(sorted(ids))


def test_many_ids_stay_small() -> None:
    """A transaction that travels with ten thousand ids still fits where tasks pass values on."""
    random = Random(1)
    moments = [1_795_261_250_000 + random.randrange(86_400_000) for _ in range(10_000)]
    ids = {moment * 10**6 + random.randrange(3) for moment in moments}
    value = transaction(snapshot=Snapshot(49, tuple(sorted(ids)))).to_json()
    assert len(json.dumps(value)) < 45_000
    assert Transaction.from_json(value).excluded == ids


@pytest.mark.parametrize("wrong", ["x", "AAAA", ["1"], None, 7])
def test_text_that_is_no_ids_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="to_json"):
        Transaction.from_json({**transaction().to_json(), "excluded": wrong})
