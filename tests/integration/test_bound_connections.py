"""A user's own connection may be set up as its driver allows: a bound transaction works, or says why not."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import rows
from psycopg.adapt import Dumper, Loader
from tests.support.store_urls import whole_url

from export_queue import ConfigurationError, InvalidArgument, Store

on_postgresql = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)


@dataclasses.dataclass
class Person:
    name: str


class OtherLoader(Loader):
    def load(self, data: Any) -> Any:
        return ("loaded", bytes(data))


class OtherDumper(Dumper):
    oid = 25

    def dump(self, obj: Any) -> bytes:
        return b"dumped"


def fill(store: Store, connection: Any, key: str, *, in_step: Callable[[], None] = lambda: None) -> None:
    """Use each step that a bound transaction has."""
    with store.transaction(connection=connection, idempotency_key=f"naïve € {key}") as tx:
        assert tx.table("t").get(key, "n") is None
        assert tx.table("t").get_many([(key, "n"), (key, "m")]) == {}
        in_step()
        tx.table("t").set(key, "n", b"\x00\xff")
        assert {row: value for row, _, value in tx.table("t").scan(prefix=key)} == {key.encode(): b"\x00\xff"}
        tx.queue("q").add(key, {"of": "€"})


def assert_kept(store: Store, *keys: str) -> None:
    assert sum(part.entries for part in store.backlog("q")) == len(keys)
    with store.transaction() as tx:
        assert {row.decode(): value for row, _, value in tx.table("t").scan()} == dict.fromkeys(keys, b"\x00\xff")


def _named(options: dict[str, Any]) -> str:
    """Name a case the same in every process: a function by its name, not by its address."""
    option, value = next(iter(options.items()))
    return f"{option}-{getattr(value, '__qualname__', value)}"[:40]


@pytest.fixture
def ready(store: Store) -> Store:
    store.configure_table("t")
    store.configure_queue("q")
    return store


@pytest.fixture
def url(ready: Store) -> str:
    return whole_url(ready).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.parametrize(
    "options",
    [
        {"row_factory": rows.dict_row},
        {"row_factory": rows.namedtuple_row},
        {"row_factory": rows.class_row(Person)},
        {"row_factory": rows.scalar_row},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
        {"prepare_threshold": None},
        {"prepare_threshold": 0},
        {"options": "-c datestyle=german,dmy -c intervalstyle=sql_standard -c bytea_output=escape -c timezone=Japan"},
        {"options": "-c search_path=elsewhere -c extra_float_digits=-15 -c standard_conforming_strings=off"},
    ],
    ids=_named,
)
@on_postgresql
def test_a_connection_of_psycopg_may_be_set_up_in_any_way(ready: Store, url: str, options: dict[str, Any]) -> None:
    with psycopg.connect(url, **options) as connection:
        for turn in range(3):
            fill(ready, connection, f"kept{turn}")
            connection.commit()
            fill(ready, connection, f"lost{turn}")
            connection.rollback()
        factories = (connection.row_factory, connection.cursor_factory)
    assert factories == (options.get("row_factory", rows.tuple_row), options.get("cursor_factory", psycopg.Cursor))
    assert_kept(ready, "kept0", "kept1", "kept2")


@on_postgresql
def test_what_a_connection_registers_for_its_own_values_changes_none_of_ours(ready: Store, url: str) -> None:
    with psycopg.connect(url) as connection:
        for kind in ("int8", "int4", "text", "bytea", "uuid", "bool", "numeric", "jsonb"):
            connection.adapters.register_loader(kind, OtherLoader)
        for kind in (int, str, bytes, bool):
            connection.adapters.register_dumper(kind, OtherDumper)
        fill(ready, connection, "kept")
        connection.commit()
        assert connection.execute("select 1::bigint").fetchone() == (("loaded", b"1"),)
    assert_kept(ready, "kept")


@on_postgresql
def test_what_a_connection_has_prepared_may_be_dropped(ready: Store, url: str) -> None:
    with psycopg.connect(url, prepare_threshold=0) as connection:
        for turn in range(3):
            fill(ready, connection, f"kept{turn}", in_step=lambda: None)
            connection.execute("do $$ begin execute 'deallocate all'; end $$", prepare=False)
            connection.commit()
    assert_kept(ready, "kept0", "kept1", "kept2")


@on_postgresql
def test_autocommit_with_a_block_of_the_drivers_carries_a_transaction(ready: Store, url: str) -> None:
    with psycopg.connect(url, autocommit=True, row_factory=rows.dict_row) as connection:
        with connection.transaction():
            fill(ready, connection, "kept")
        with pytest.raises(InvalidArgument, match="found autocommit"):
            fill(ready, connection, "refused")
    assert_kept(ready, "kept")


@on_postgresql
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_connection_whose_encoding_loses_texts_is_refused(ready: Store, url: str, encoding: str) -> None:
    with psycopg.connect(url, client_encoding=encoding) as connection:
        with pytest.raises(InvalidArgument, match=f"expected client_encoding UTF8.*found {encoding}") as caught:
            fill(ready, connection, "refused")
        assert "SET client_encoding TO 'UTF8'" in caught.value.hint
        connection.execute("SET client_encoding TO 'UTF8'")
        fill(ready, connection, "kept")
        connection.commit()
    assert_kept(ready, "kept")


@on_postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_isolation_level_is_refused_with_advice(ready: Store, level: str) -> None:
    engine = sa.create_engine(whole_url(ready), isolation_level=level)
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="READ COMMITTED"):
        fill(ready, connection, "refused")
    engine.dispose()


@pytest.mark.parametrize(
    "options",
    [
        {"schema_translate_map": {None: "elsewhere"}},
        {"stream_results": True, "yield_per": 1},
        {"isolation_level": "READ COMMITTED"},
        {"no_parameters": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_sqlalchemy_are_those_of_its_own_statements(
    ready: Store, store_kind: str, options: dict[str, Any]
) -> None:
    if store_kind == "sqlite" and "isolation_level" in options:
        options = {"isolation_level": "SERIALIZABLE"}
    engine = sa.create_engine(whole_url(ready))
    with engine.connect().execution_options(**options) as connection:
        fill(ready, connection, "kept")
        connection.commit()
    engine.dispose()
    assert_kept(ready, "kept")


def as_dict(cursor: sqlite3.Cursor, row: Any) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def as_named(cursor: sqlite3.Cursor, row: Any) -> Any:
    return namedtuple("Row", [f"c{i}" for i in range(len(row))])(*row)


@on_sqlite
@pytest.mark.parametrize("row_factory", [None, as_dict, as_named, sqlite3.Row, lambda cursor, row: row[0]])
@pytest.mark.parametrize("text_factory", [str, bytes, bytearray, lambda text: text.decode("latin-1") + "?"])
def test_factories_of_a_connection_of_sqlite_are_set_aside(
    ready: Store, store_url: str, row_factory: Any, text_factory: Any
) -> None:
    connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
    connection.row_factory, connection.text_factory = row_factory, text_factory

    def unchanged() -> None:
        assert (connection.row_factory, connection.text_factory) == (row_factory, text_factory)

    fill(ready, connection, "kept", in_step=unchanged)
    connection.commit()
    unchanged()
    connection.close()
    assert_kept(ready, "kept")


@on_sqlite
@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", None])
@pytest.mark.parametrize("detect", [0, sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES])
def test_every_isolation_level_of_sqlite_carries_a_transaction(
    ready: Store, store_url: str, level: Any, detect: int
) -> None:
    connection = sqlite3.connect(
        store_url.removeprefix("sqlite:///"), isolation_level=level, detect_types=detect, cached_statements=0
    )
    if level is None:
        with pytest.raises(InvalidArgument, match="found autocommit"):
            fill(ready, connection, "refused")
        connection.execute("begin")
    fill(ready, connection, "kept")
    connection.commit()
    connection.close()
    assert_kept(ready, "kept")


@on_sqlite
@pytest.mark.parametrize("kind", ["integer", "bigint", "text", "blob", "boolean", "char"])
def test_converters_of_types_that_the_store_declares_are_refused(
    ready: Store, store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sqlite3.converters, kind.upper(), lambda value: ("converted", value))
    path = store_url.removeprefix("sqlite:///")
    converting = sqlite3.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)
    with pytest.raises(InvalidArgument, match=f"converts values of type {kind.upper()}") as caught:
        fill(ready, converting, "refused")
    assert "without detect_types" in caught.value.hint
    converting.close()
    plain = sqlite3.connect(path)
    fill(ready, plain, "kept")
    plain.commit()
    plain.close()
    assert_kept(ready, "kept")


@on_sqlite
def test_a_connection_on_which_commit_does_nothing_is_refused(ready: Store, store_url: str) -> None:
    class Autocommit(sqlite3.Connection):
        autocommit = True  # as the attribute of Python 3.12

    connection = sqlite3.connect(store_url.removeprefix("sqlite:///"), factory=Autocommit)
    with pytest.raises(InvalidArgument, match="found autocommit"):
        fill(ready, connection, "refused")
    connection.close()
