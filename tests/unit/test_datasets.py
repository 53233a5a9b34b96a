"""The names of what sinks write to, for tools of data lineage."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from export_queue import SinkSpec
from export_queue.core.sinks import datasets_of, sql_names
from export_queue.core.sinks.datasets import TEMPLATES
from export_queue.core.sinks.spec import _factory


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
def test_the_default_templates_are_those_of_the_sinks(kind: str) -> None:
    option, default = TEMPLATES[kind]
    pytest.importorskip({"sql": "sqlalchemy", "redis": "redis"}.get(kind, "elastic_transport"))
    assert (
        inspect.signature(_factory(SinkSpec(kind, {"url": "sqlite:////x.db"} if kind == "sql" else {})))
        .parameters[option]
        .default
        == default
    )


@pytest.mark.parametrize(
    ("kind", "options", "namespace", "name"),
    [
        ("redis", {}, "redis://localhost:6379", "0/orders:*"),
        ("redis", {"host": "r", "port": 7, "db": 2, "key": "${id}x$$"}, "redis://r:7", "2/*x$"),
        ("elasticsearch", {}, "elasticsearch://localhost:9200", "orders"),
        (
            "elasticsearch",
            {"hosts": ["https://a", "https://b:1"], "index": "v2-$collection"},
            "elasticsearch://a:443",
            "v2-orders",
        ),
        ("opensearch", {"hosts": "https://a:9201"}, "opensearch://a:9201", "orders"),
        ("sql", {"url": "sqlite:////var/copies.db"}, "sqlite:///var/copies.db", "orders"),
        ("sql", {"url": "postgresql+psycopg://anna@db/exports"}, "postgres://db:5432", "exports.public.orders"),
        (
            "sql",
            {"url": "postgresql+psycopg://db:6/e", "table": "mart.$collection"},
            "postgres://db:6",
            "e.mart.orders",
        ),
        ("sql", {"url": "postgresql+psycopg:///e?host=a,b&port=6"}, "postgres://a:6", "e.public.orders"),
        ("sql", {"url": "postgresql+psycopg:///e?host=/run/sockets"}, "postgres://localhost:5432", "e.public.orders"),
        ("sql", {"url": "mysql+pymysql://anna@db/exports"}, "mysql://db:3306", "exports.orders"),
    ],
)
def test_what_a_sink_writes_to_is_named_without_user_and_password(
    kind: str, options: dict[str, Any], namespace: str, name: str
) -> None:
    (found,) = datasets_of(SinkSpec(kind, options), "orders")
    assert (found.namespace, found.name) == (namespace, name)
    assert "anna" not in found.namespace + found.name


def test_a_star_stands_for_collections_that_the_exporter_chooses() -> None:
    (found,) = datasets_of(SinkSpec("sql", {"url": "sqlite:////x.db", "table": "all_$collection"}), None)
    assert found.name == "all_*"


def test_a_composite_sink_writes_to_each_of_its_parts_and_own_sinks_are_not_known() -> None:
    parts = [{"kind": "redis"}, {"kind": "elasticsearch"}, {"kind": "opensearch", "name": "other"}, {"kind": "memory"}]
    found = datasets_of(SinkSpec("composite", {"parts": parts}), "orders")
    assert [one.name for one in found] == ["0/orders:*", "orders", "orders"]


def test_a_name_of_a_table_is_completed_from_the_left() -> None:
    names = sql_names("postgresql+psycopg://db/e")
    given = [(None, None, "t"), (None, "s", "t"), ("d", "s", "t")]
    assert [names.table(*parts).name for parts in given] == ["e.public.t", "e.s.t", "d.s.t"]
