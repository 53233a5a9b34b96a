"""How a PostgreSQL server registers each kind of transaction, as one table."""

from __future__ import annotations

import pytest

from export_queue.core.store.registration import Kind, Registration, registration_of

TABLE: dict[tuple[Kind, bool], Registration] = {
    ("write", False): "commit",
    ("short", False): "commit",
    ("short", True): "row",
    ("bound", True): "transaction",
    ("long", True): "rows",
}


@pytest.mark.parametrize(("kind", "has_id"), TABLE)
def test_each_kind_has_one_registration(kind: Kind, has_id: bool) -> None:
    assert registration_of(kind, has_id=has_id) == TABLE[kind, has_id]
