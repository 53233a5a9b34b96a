"""Which versions of a cell may go: the rule against visibility, and the store's SQL against the rule (I11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from export_queue import Store
from export_queue.core.store import Snapshot, schema
from export_queue.core.store.queries import versions as sql

IDS = st.integers(1, 30)
ROWS, COLUMNS = (b"a", b"b", b"\xff"), (b"x", b"y")


class Version(NamedTuple):
    id: int
    is_tombstone: bool


CELL = st.dictionaries(IDS, st.booleans(), max_size=8).map(
    lambda versions: [Version(*version) for version in sorted(versions.items())]
)


def may_go(versions: list[Version], horizon: int, expired: int) -> list[Version]:
    """The rule in words: below the horizon all but the newest, and that one too if it reads as nothing."""
    below = [version for version in versions if version.id < horizon]
    return [v for v in below if v is not below[-1] or v.is_tombstone or v.id <= expired]


@st.composite
def snapshots(draw: Any, horizon: int) -> Snapshot:
    """A snapshot that does not reach below the horizon."""
    excluded = draw(st.frozensets(st.integers(horizon, 40), max_size=6))
    own = draw(st.integers(horizon, 41))
    return Snapshot(read_pointer=own - 1, excluded=tuple(sorted(i for i in excluded if i < own)), write_pointers=(own,))


def seen(versions: list[Version], snapshot: Snapshot, oldest: int) -> int | None:
    """The version that a read finds; None for nothing, a tombstone or one that has expired, as those before another."""
    visible = [version for version in versions if snapshot.is_visible(version.id)]
    if not visible or visible[-1].is_tombstone:
        return None
    newest = visible[-1].id
    return newest if newest in snapshot.write_pointers or newest > oldest else None


@given(st.data(), CELL, st.integers(1, 30), st.integers(-10, 40))
@settings(max_examples=400)
def test_no_snapshot_above_the_horizon_reads_another_value(
    data: Any, versions: list[Version], horizon: int, expired: int
) -> None:
    going = may_go(versions, horizon, expired=expired)
    snapshot = data.draw(snapshots(horizon))
    oldest = data.draw(st.integers(expired, 50))  # ages count from no earlier time than clean-up has counted from
    for number in range(len(going) + 1):  # oldest first, interrupted anywhere
        left = [version for version in versions if version not in going[:number]]
        assert seen(left, snapshot, oldest) == seen(versions, snapshot, oldest)


@given(CELL, st.integers(1, 30))
def test_at_most_one_version_stays_below_the_horizon(versions: list[Version], horizon: int) -> None:
    left = [v for v in versions if v not in may_go(versions, horizon, expired=0)]
    assert sum(version.id < horizon for version in left) <= 1
    assert not any(version.is_tombstone for version in left if version.id < horizon)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{Path(tmp_path_factory.mktemp('store')) / 'store.db'}"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.url(server.create_database())
    with Store.open(url) as store:
        store.create()
        yield store


def stored(store: Store) -> list[tuple[int, bytes, bytes, Version]]:
    c = schema.cell.c
    with store.database.read() as work:
        found = work.connection.execute(
            sa.select(schema.cell).order_by(c.table_number, c.row_key, c.column_key, c.version)
        )
        return [
            (r.table_number, bytes(r.row_key), bytes(r.column_key), Version(r.version, r.value is None)) for r in found
        ]


@given(
    cells=st.dictionaries(st.tuples(st.integers(1, 2), st.sampled_from(ROWS), st.sampled_from(COLUMNS)), CELL),
    horizon=st.integers(1, 30),
    expired=st.integers(-1, 29),
    limit=st.integers(1, 7),
    by=st.sampled_from(["rows", "cells", "pages"]),
)
@settings(max_examples=60)
def test_the_store_deletes_what_the_rule_says_oldest_first(
    any_store: Store, cells: dict[Any, list[Version]], horizon: int, expired: int, limit: int, by: str
) -> None:
    before = [(*cell, version) for cell, versions in sorted(cells.items()) for version in versions]
    expired = min(expired, horizon - 1)
    with any_store.database.begin() as work:
        work.connection.execute(schema.cell.delete())
        for number, row, column, version in before:
            work.connection.execute(
                schema.cell.insert().values(
                    table_number=number,
                    row_key=row,
                    column_key=column,
                    version=version.id,
                    value=None if version.is_tombstone else b"v",
                )
            )
    doomed = [
        (*cell, version)
        for cell, versions in sorted(cells.items())
        for version in may_go(versions, horizon, expired if by == "pages" else NEVER)
        if cell[0] == 1
    ]
    for _ in deletions(any_store, by, horizon, expired, limit):
        left = stored(any_store)
        gone = [place for place in before if place not in left]
        assert gone == doomed[: len(gone)]
    assert stored(any_store) == [place for place in before if place not in doomed]


NEVER = -1
EXISTING = [(1, row, column) for row in ROWS for column in COLUMNS]


def deletions(store: Store, by: str, horizon: int, expired: int, limit: int) -> Iterator[None]:
    """Delete from table 1 bit by bit, in one of three ways."""
    if by == "pages":
        after: sql.CellKey | None = (1, b"", b"", -1)
        while after is not None:
            with store.database.begin() as work:
                end = sql.page_end(work, after, rows=limit)
                sql.delete_of_page(work, after, end, horizon=horizon, expired=expired)
            after = end
            yield
        return
    wanted: list[sql.Cells] = (
        [(1, row, None) for row in (*ROWS, b"none")] if by == "rows" else [*EXISTING, (9, b"", b"")]
    )
    deleted = limit
    while deleted == limit:
        with store.database.begin() as work:
            deleted = sql.delete_of_cells(work, wanted, horizon=horizon, limit=limit)
        assert deleted <= limit
        yield
