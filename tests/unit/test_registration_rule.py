"""How a server registers each kind of transaction, as one table."""

from __future__ import annotations

import pytest

from export_queue.core.store.registration import IdSource, Kind, Registration, registration_of

TABLE: dict[tuple[Kind, bool], dict[IdSource, Registration]] = {
    ("write", False): {"sequence": "commit", "clock": "row"},
    ("short", False): {"sequence": "commit", "clock": "row"},
    ("short", True): {"sequence": "row", "clock": "row"},
    ("bound", True): {"sequence": "transaction", "clock": "row"},
    ("long", True): {"sequence": "rows", "clock": "rows"},
}


@pytest.mark.parametrize(("kind", "has_id"), TABLE)
@pytest.mark.parametrize("id_source", ["sequence", "clock"])
def test_a_kind_has_one_registration_in_a_store(kind: Kind, has_id: bool, id_source: IdSource) -> None:
    assert registration_of(kind, id_source=id_source, has_id=has_id) == TABLE[kind, has_id][id_source]
