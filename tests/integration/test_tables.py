"""Tables on both stores: many cells at once, scans, rows, time to live (I1, I4)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.test_transactions import wait_past
from tests.support.contexts import opened_by

from export_queue import InvalidArgument, OptionsDiffer, SnapshotTooOld, Store
from export_queue.core.store import Span, schema
from export_queue.core.transactions import scan_cells

Cells = dict[tuple[bytes, bytes], bytes]

keys = st.sampled_from([b"a", b"aa", b"ab", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"])
values = st.one_of(st.none(), st.sampled_from([b"", b"1", b"\x00\xff"]))
writes = st.lists(st.tuples(keys, keys, values), max_size=12)


def write(store: Store, table: str, cells: list[tuple[bytes, bytes, bytes | None]]) -> None:
    with store.transaction() as tx:
        apply(tx.table(table), cells)


def apply(table: object, cells: list[tuple[bytes, bytes, bytes | None]]) -> None:
    for row, column, value in cells:
        if value is None:
            table.delete(row, column)  # type: ignore[attr-defined]
        else:
            table.set(row, column, value)  # type: ignore[attr-defined]


def model(*steps: list[tuple[bytes, bytes, bytes | None]]) -> Cells:
    found: dict[tuple[bytes, bytes], bytes | None] = {}
    for step in steps:
        found |= {(row, column): value for row, column, value in step}
    return {cell: value for cell, value in found.items() if value is not None}


numbers = iter(range(10**6))


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=writes, staged=writes, own=writes, later=writes, first=keys, end=keys, columns=st.lists(keys, max_size=2))
def test_reads_of_all_kinds_agree_with_a_dictionary(
    store: Store,
    old: list[tuple[bytes, bytes, bytes | None]],
    staged: list[tuple[bytes, bytes, bytes | None]],
    own: list[tuple[bytes, bytes, bytes | None]],
    later: list[tuple[bytes, bytes, bytes | None]],
    first: bytes,
    end: bytes,
    columns: list[bytes],
) -> None:
    name = f"t{next(numbers)}"
    store.configure_table(name, conflict="none")
    write(store, name, old)
    with store.transaction(long=True) as tx:
        table = tx.table(name)
        apply(table, staged)
        tx.flush()
        write(store, name, later)  # by somebody else, and so not visible
        apply(table, own)
        expected = model(old, staged, own)
        in_order = sorted(expected)
        assert [(r, c) for r, c, _ in table.scan()] == in_order
        assert {(r, c): v for r, c, v in table.scan()} == expected
        assert [(r, c) for r, c, _ in table.scan(first, end)] == [x for x in in_order if first <= x[0] < end]
        assert [(r, c) for r, c, _ in table.scan(prefix=first)] == [x for x in in_order if x[0].startswith(first)]
        chosen = [x for x in in_order if x[1] in columns]
        assert [(r, c) for r, c, _ in table.scan(columns=columns)] == chosen
        assert [(r, c) for r, c, _ in table.scan(limit=3)] == in_order[:3]
        paged = scan_cells(opened_by(tx), table._options.number, Span(), page=2)
        assert [(r, c) for r, c, _ in paged] == in_order
        everything = [(r, c) for r in (b"a", b"aa", b"b", b"\xff") for c in (b"a", b"aa", b"\xff\xff")]
        assert table.get_many(everything) == {cell: expected[cell] for cell in everything if cell in expected}
        assert all(table.get(*cell) == expected.get(cell) for cell in everything)


def test_pages_that_end_between_versions_of_a_cell_give_the_newest_one(store: Store) -> None:
    for value in (b"1", b"2", b"3"):
        write(store, "t", [(b"a", b"n", value), (b"b", b"n", value), (b"b", b"o", value)])
    write(store, "t", [(b"b", b"n", None)])
    with store.transaction() as tx:
        number = tx.table("t")._options.number
        for page in range(1, 12):
            found = list(scan_cells(opened_by(tx), number, Span(), page=page))
            assert found == [(b"a", b"n", b"3"), (b"b", b"o", b"3")], f"pages of {page} versions"


@pytest.mark.parametrize(
    ("value", "limit", "sizes"),
    [
        (b"x", None, [100, 5000]),
        (b"x", 150, [100, 151]),
        (b"x", 5, [100]),
        (b"x" * 20_000, None, [100, 209, 209]),
        (b"x" * 5_000_000, 3, [100]),
    ],
)
def test_pages_of_a_scan_are_as_long_as_their_values_are_small(
    store: Store, monkeypatch: pytest.MonkeyPatch, value: bytes, limit: int | None, sizes: list[int]
) -> None:
    count = 5 if len(value) > 1_000_000 else 320
    write(store, "t", [(b"%03d" % number, b"n", value) for number in range(count)])
    dialect, asked = store.database.dialect.steps, []
    read = dialect.scan_versions

    def scan_versions(connection, snapshot, scan):  # type: ignore[no-untyped-def]
        asked.append(scan.limit)
        return read(connection, snapshot, scan)

    monkeypatch.setattr(dialect, "scan_versions", scan_versions)
    with store.transaction() as tx:
        assert [row for row, _, _ in tx.table("t").scan(limit=limit)] == [b"%03d" % n for n in range(limit or count)]
    assert asked == sizes


def test_the_database_picks_the_newest_version_where_cells_have_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [(b"%03d" % number, b"n") for number in range(400)]
    for version in range(6):
        write(store, "t", [(row, column, b"%d" % version) for row, column in cells])
    write(store, "t", [(b"007", b"n", None), (b"399", b"n", None)])
    dialect, read = store.database.dialect.steps, 0
    read_versions = dialect.scan_versions

    def scan_versions(*arguments, **named):  # type: ignore[no-untyped-def]
        nonlocal read
        found = read_versions(*arguments, **named)
        read += len(found)
        return found

    monkeypatch.setattr(dialect, "scan_versions", scan_versions)
    with store.transaction() as tx:
        assert tx.table("t").get("000", "n") == b"5"
        write(store, "t", [(row, column, b"later") for row, column in cells if row != b"005"])
        tx.table("t").set("005", "n", b"own")
        found = {row: value for row, _, value in tx.table("t").scan()}
    assert found == {row: b"own" if row == b"005" else b"5" for row, _ in cells if row not in (b"007", b"399")}
    assert read < 600


def test_where_cells_have_few_versions_again_all_are_read(store: Store) -> None:
    for version in range(8):
        write(store, "t", [(b"%03d" % number, b"n", b"%d" % version) for number in range(50)])
    write(store, "t", [(b"%03d" % number, b"n", b"once") for number in range(50, 500)])
    with store.transaction() as tx:
        found = [value for _, _, value in tx.table("t").scan()]
        some = list(tx.table("t").scan(limit=120))
    assert found == [b"7"] * 50 + [b"once"] * 450
    assert len(some) == 120


def test_a_deleted_row_is_gone_with_all_its_columns(store: Store) -> None:
    write(store, "t", [(b"r", b"1", b"x"), (b"r", b"2", b"x"), (b"r\x00", b"1", b"kept"), (b"q", b"1", b"kept")])
    with store.transaction() as tx:
        tx.table("t").set("r", "3", b"own")
        tx.table("t").delete_row("r")
        assert [row for row, _, _ in tx.table("t").scan()] == [b"q", b"r\x00"]
    with store.transaction() as tx:
        assert [row for row, _, _ in tx.table("t").scan()] == [b"q", b"r\x00"]


def test_what_is_older_than_its_time_to_live_is_gone(store: Store) -> None:
    store.configure_table("brief", ttl=3600)
    write(store, "brief", [(b"a", b"n", b"old"), (b"b", b"n", b"old")])
    with store.database.begin() as work:  # two hours ago
        cell = schema.cell
        work.connection.execute(cell.update().values(version=cell.c.version - 2 * 3600 * 10**9))
    write(store, "brief", [(b"b", b"n", b"new")])
    with store.transaction() as tx:
        table = tx.table("brief")
        assert table.get("a", "n") is None
        assert table.get("b", "n") == b"new"
        assert table.get_many([("a", "n"), ("b", "n")]) == {(b"b", b"n"): b"new"}
        assert list(table.scan()) == [(b"b", b"n", b"new")]
        assert list(table.scan(limit=1)) == [(b"b", b"n", b"new")]
        table.set("a", "n", b"own")
        assert table.get("a", "n") == b"own"


@pytest.mark.parametrize("settled", [False, True])
def test_what_has_expired_is_gone_for_those_who_only_read_too(store: Store, settled: bool) -> None:
    """Also where nobody has drawn an id since."""
    store.configure_table("brief", ttl=0.05)
    store.configure_table("lasting", ttl=3600)
    with store.transaction() as tx:
        tx.table("brief").set("a", "n", b"1")
        tx.table("lasting").set("a", "n", b"1")
        own = tx.id
    wait_past(store, own // 1_000_000 + 50)
    with store.transaction(read_only=not settled, settled=settled) as tx:
        assert tx.table("brief").get("a", "n") is None
        assert list(tx.table("brief").scan()) == []
        assert tx.table("lasting").get("a", "n") == b"1"


def test_a_time_to_live_is_a_stored_option(store: Store) -> None:
    store.configure_table("t", ttl=60)
    store.configure_table("t", ttl=60)
    with pytest.raises(OptionsDiffer, match="ttl: expected None, found 60.0"):
        store.configure_table("t")
    with pytest.raises(InvalidArgument, match="ttl"):
        store.configure_table("u", ttl=0)


def test_scans_and_many_reads_below_the_horizon_are_refused(store: Store) -> None:
    write(store, "t", [(b"a", b"n", b"1")])
    for read in (lambda t: list(t.scan()), lambda t: t.get_many([("a", "n")])):
        with pytest.raises(SnapshotTooOld), store.transaction() as tx:
            assert tx.id
            with store.database.begin() as work:
                horizon = store.database.dialect.steps.draw(work.connection)
                work.connection.execute(schema.store.update().values(horizon=horizon))
            read(tx.table("t"))


@pytest.mark.parametrize("arguments", [{"prefix": "a", "start": "a"}, {"limit": -1}, {"limit": 1.5}])
def test_a_bad_scan_is_refused(store: Store, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument), store.transaction() as tx:
        tx.table("t").scan(**arguments)  # type: ignore[arg-type]
