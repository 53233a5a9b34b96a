"""The rule of visibility, as a value (I1, I4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from export_queue.core.transactions import Level, Snapshot, Transaction


def transaction(**changes: object) -> Transaction:
    values = {
        "id": 50,
        "read_pointer": 49,
        "excluded": frozenset({10, 20}),
        "own": (50, 60),
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
        transaction, id=ids, read_pointer=ids, excluded=st.frozensets(ids), own=st.lists(ids, min_size=1).map(tuple)
    )
)
def test_a_transaction_survives_the_way_through_json(value: Transaction) -> None:
    assert Transaction.from_json(value.to_json()) == value


@given(ids, st.lists(ids, unique=True).map(sorted).map(tuple), ids)
def test_the_view_that_sql_gets_says_the_same_as_the_rule(
    pointer: int, excluded: tuple[int, ...], version: int
) -> None:
    snapshot = Snapshot(pointer, excluded)
    view = snapshot.view
    assert snapshot.is_visible(version) == (version <= view.read_pointer and version not in view.excluded)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
