"""How a server registers each kind of transaction, as one table."""

from __future__ import annotations

import pytest

from export_queue.core.store.registration import IdSource, Kind, Registration, registration_of

TABLE: dict[Kind, tuple[Registration, Registration, Registration]] = {
    # by locks, by locks behind a pooler, by a clock
    "write": ("commit", "commit", "row"),
    "short": ("session", "row", "row"),
    "bound": ("transaction", "transaction", "row"),
    "long": ("rows", "rows", "rows"),
}


@pytest.mark.parametrize("kind", TABLE)
@pytest.mark.parametrize(
    ("column", "id_source", "owns_session"), [(0, "sequence", True), (1, "sequence", False), (2, "clock", True)]
)
def test_a_kind_and_a_way_to_the_store_have_one_registration(
    kind: Kind, column: int, id_source: IdSource, owns_session: bool
) -> None:
    assert registration_of(kind, id_source=id_source, owns_session=owns_session) == TABLE[kind][column]


def test_a_clock_registers_by_rows_behind_a_pooler_too() -> None:
    assert registration_of("short", id_source="clock", owns_session=False) == "row"
