"""A scan reads one snapshot, whatever is written and cleaned up between its pages (I1, I11)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.contexts import opened_by
from tests.support.patience import AT_ONCE

from export_queue import Store
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.store import Span
from export_queue.core.transactions import scan_cells

_names = itertools.count()

cells = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.just(b"n"))
values = st.one_of(st.none(), st.binary(max_size=2))
commits = st.dictionaries(cells, values, min_size=1, max_size=3)


def commit(store: Store, table: str, written: Mapping[tuple[bytes, bytes], bytes | None]) -> None:
    with store.transaction() as tx:
        for cell, value in written.items():
            if value is None:
                tx.table(table).delete(*cell)
            else:
                tx.table(table).set(*cell, value)


@settings(
    max_examples=50,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # examples are small, and making them smaller takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example has a table of its own
)
@given(
    before=st.lists(commits, min_size=2, max_size=6),
    meanwhile=st.lists(st.one_of(commits, st.just("clean up")), max_size=3),
    page=st.integers(1, 4),
    is_long=st.booleans(),
)
def test_a_scan_reads_its_snapshot_whatever_happens_between_its_pages(
    store: Store, before: list[Any], meanwhile: list[Any], page: int, is_long: bool
) -> None:
    name = f"t{next(_names)}"
    expected: dict[tuple[bytes, bytes], bytes | None] = {}
    for written in before:
        commit(store, name, written)
        expected |= written
    with store.transaction(long=is_long) as tx:
        table = tx.table(name)
        found = []
        for cell in scan_cells(opened_by(tx), table._options.number, Span(), page=page):
            found.append(cell)
            for act in ["clean up", *meanwhile]:
                if act == "clean up":
                    maintain(store.database, patience=AT_ONCE if is_long else Patience(between_calls=0))
                else:
                    commit(store, name, act)
    assert found == sorted((*cell, value) for cell, value in expected.items() if value is not None)


def test_a_scan_sees_nothing_of_what_was_in_progress_when_it_began_and_commits_meanwhile(store: Store) -> None:
    commit(store, "t", {(b"a", b"n"): b"old", (b"b", b"n"): b"old"})
    with ExitStack() as others, store.transaction() as reader:
        other = others.enter_context(store.transaction())
        other.table("t").set(b"a", b"n", b"new")
        assert other.id < reader.id
        others.close()
        assert list(reader.table("t").scan()) == [(b"a", b"n", b"old"), (b"b", b"n", b"old")]
    with store.transaction() as later:
        assert list(later.table("t").scan()) == [(b"a", b"n", b"new"), (b"b", b"n", b"old")]
