"""How `export-queue doctor` judges what it has read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from export_queue import InvalidArgument, MemorySink, SegmentRefused, SinkSpec
from export_queue.core.doctor import Check, checked, examine_sink, examine_software
from export_queue.core.doctor.places import examine_pending, examine_place, examine_store_file, filesystem_of
from export_queue.core.doctor.software import DISTRIBUTION, judge_packages, read_needed
from export_queue.core.doctor.store import (
    judge_clock,
    judge_connections,
    judge_rights,
    judge_schema,
    judge_server,
    judge_sqlite,
)
from export_queue.core.store import RIGHTS, Identity, Right, Rights, Role, ServerFacts, nearest
from export_queue.core.store.roles import CHECKED

FACTS = ServerFacts(
    version="15.4",
    version_number=150004,
    is_durable=True,
    is_read_only=False,
    max_connections=97,
    connections=12,
    database="exports",
    database_limit=None,
    database_connections=4,
    role="app",
    role_limit=None,
    role_connections=2,
    is_own_session=True,
)
MOUNTS = "disk / ext4 rw 0 0\nnas:/x /srv/my\\040files nfs4 rw 0 0\ntmp /srv/my\\040files/fast tmpfs rw 0 0\n"


def test_every_requirement_of_the_package_is_understood() -> None:
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    found = [read_needed(line, extras) for line in metadata.requires(DISTRIBUTION) or []]
    assert {(one.package, one.extra) for one in found} >= {("psycopg", "postgres"), ("pyspark", "spark")}
    assert {one.package for one in found if one.extra is None} >= {"sqlalchemy", "typer", "xxhash"}
    assert all(str(one.versions) for one in found if one.extra is None)


def test_packages_are_judged_by_what_is_needed_here() -> None:
    needed = [
        read_needed("core>=2", []),
        read_needed("psycopg[binary]<4,>=3.2; extra == 'postgres'", ["redis", "postgres"]),
        read_needed("redis<9,>=6.4; extra == 'redis'", ["redis"]),
        read_needed("pyspark==4.3.*; extra == 'spark'", ["spark"]),
    ]

    def found(installed: dict[str, str], *extras: str) -> dict[str, str]:
        return {one.subject: one.level for one in judge_packages(needed, installed, extras=extras)}

    assert found({"core": "2.1"}) == {"packages": "ok"}, "an extra that nothing needs may be missing"
    assert found({"core": "2.1", "redis": "5.0"}) == {"packages": "ok"}, "nor does its version matter"
    assert found({"core": "2.1rc1", "pyspark": "4.3.7"}) == {"packages": "ok"}, "a version to be tried counts as well"
    assert found({"core": "10.0", "pyspark": "4.4.0"}) == {"pyspark": "warning", "packages": "ok"}
    assert found({"core": "1.9"}, "postgres") == {"core": "warning", "psycopg": "error", "packages": "ok"}
    assert found({"core": "2", "pyspark": "4.3.1", "pyspark-client": "4.2.0"})["pyspark"] == "warning"
    (missing, _) = judge_packages(needed, {"core": "2"}, extras=["redis"])
    assert missing.fix == "pip install 'airflow-provider-export-queue[redis]'"


def test_this_environment_is_in_order() -> None:
    extras = ["postgres", "redis", "elasticsearch", "opensearch", "mysql", "s3"]
    assert {one.level for one in examine_software(extras)} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (FACTS, "ok"),
        (FACTS._replace(version_number=140010), "warning"),
        (FACTS._replace(is_durable=False), "warning"),
    ],
)
def test_a_server_is_judged_by_its_version_and_durability(facts: ServerFacts, level: str) -> None:
    found = judge_server(facts)
    assert found.level == level
    assert (found.fix is None) is (level == "ok")


@pytest.mark.parametrize(
    ("changes", "level", "named"),
    [
        ({}, "ok", "12 of 97 connections of the server"),
        ({"connections": 40}, "warning", "40 of 97"),
        ({"connections": 95}, "error", "95 of 97"),
        ({"role_limit": 5}, "error", "2 of 5 connections of role app"),
        ({"database_limit": 20}, "warning", "4 of 20 connections of database exports"),
        ({"is_own_session": False}, "ok", "a pooler is in between"),
    ],
)
def test_the_narrowest_limit_of_connections_counts(changes: dict[str, Any], level: str, named: str) -> None:
    (found,) = judge_connections(FACTS._replace(**changes))
    assert found.level == level
    assert named in found.found
    assert (found.fix is None) is (level == "ok")


def test_missing_rights_come_with_the_statements_that_grant_them() -> None:
    def judged(held: Iterable[Right], **changes: Any) -> list[Check]:
        rights = Rights("My Schema", 'o"neil', "boss", False, frozenset(held), CHECKED.difference(held), ())
        return [*judge_rights(rights._replace(**changes))]

    everything = RIGHTS["application"]
    assert judged((), owner=None) == [], "another check says that there is no store"
    assert [one.level for one in (*judged(everything), *judged((), is_owner=True))] == ["ok", "ok"]
    for role in ("writer", "drainer"):
        (found,) = judged(RIGHTS[role])
        assert (found.level, f"the rights of: {role};" in found.found) == ("ok", True)
        for right in RIGHTS[role]:
            if right != Right("schema", "", "usage"):
                (found,) = judged(RIGHTS[role] - {right})
                assert (found.level, right.privilege in (found.fix or "")) == ("error", True), right
    assert [one.level for one in judged(RIGHTS["reader"])] == ["warning"]
    (found,) = judged(())
    assert (found.level, found.found.count("execute on function")) == ("error", 3)
    assert 'as boss: grant usage on schema "My Schema" to "o""neil"; grant select, insert, update, delete on all' in (
        found.fix or ""
    )
    (found,) = judged(everything - {Right("table", "xq_lock", "update")})
    assert found.fix == 'as boss: grant update on table "My Schema".xq_lock to "o""neil"'
    (public, _) = judged(everything, public=("xq_commit_v1",))
    assert public.fix == 'as boss: revoke execute on function "My Schema".xq_commit_v1 from public'


def test_every_combination_of_roles_is_recognised_and_nothing_more_is_asked_of_it() -> None:
    small: list[Role] = ["reader", "writer", "drainer"]
    for size in (1, 2, 3):
        for them in combinations(small, size):
            held = frozenset().union(*(RIGHTS[role] for role in them))
            assert nearest(held) == (them, frozenset())
            everybodys = {right for right in RIGHTS["application"] if right.name == "xq_set_floor_v1"}
            assert nearest(held | everybodys) == (them, frozenset())


@pytest.mark.parametrize(
    ("ahead", "slack", "level"),
    [(None, 0.0, "ok"), (0.4, 0.0, "ok"), (-3.0, 0.1, "warning"), (3.0, 2.5, "ok"), (3600.0, 0.0, "warning")],
)
def test_clocks_may_differ_by_what_the_answer_took(ahead: float | None, slack: float, level: str) -> None:
    assert judge_clock(ahead, slack=slack).level == level


def test_an_older_schema_or_library_is_a_warning() -> None:
    identity = Identity("s", 1, 1)
    assert judge_schema(identity, "sqlite:///x").level == "ok"
    assert judge_schema(replace(identity, schema_version=0), "sqlite:///x").level == "warning"
    assert [judge_sqlite(version).level for version in ("3.39.5", "3.40.1", "3.100.0")] == ["warning", "ok", "ok"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/store.db", "ext4"),
        ("/srv/my files/store.db", "nfs4"),
        ("/srv/my filesystem", "ext4"),
        ("/srv/my files/fast/store.db", "tmpfs"),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind


def test_a_file_on_a_network_filesystem_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store.db").touch()
    monkeypatch.setattr("export_queue.core.doctor.places._mounts", lambda: "nas:/x / nfs4 rw 0 0\n")
    first, *_ = examine_store_file(tmp_path / "store.db")
    assert first.level == "error"
    assert "nfs4" in first.found


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store.db").touch()
    (tmp_path / "store.db-wal").touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("-wal") and access(path, mode))
    (found,) = examine_store_file(tmp_path / "store.db")
    assert (found.level, found.found) == ("error", f"not readable and writable: {tmp_path}/store.db-wal")


def test_a_place_of_segments_is_a_folder_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(place: str | None, *, needed_by: str | None = None, is_shared: bool = True) -> str:
        (found,) = examine_place(place, needed_by=needed_by, is_shared=is_shared)
        return found.level

    assert judged(None) == "ok"
    assert judged(None, needed_by="orders") == "warning"
    assert judged(str(tmp_path)) == "ok"
    assert judged(f"{tmp_path}/new", is_shared=False) == "ok"
    assert judged(f"{tmp_path}/new") == "warning", "perhaps a shared folder is not mounted"
    (tmp_path / "file").touch()
    assert judged(f"{tmp_path}/file/below") == "error"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert judged(str(tmp_path)) == "error"
    monkeypatch.undo()
    monkeypatch.setattr("export_queue.core.doctor.places.LEAST_FREE", 1 << 60)
    assert judged(str(tmp_path)) == "warning"


def test_a_place_in_an_object_store_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def exists(url: str) -> bool:
        asked.append(url)
        if "closed" in url:
            raise SegmentRefused(f"file {url}: ACCESS_DENIED", hint="grant it")
        return "empty" not in url

    monkeypatch.setattr("export_queue.core.doctor.places.exists", exists)
    for place, level, told in (
        ("full", "ok", "has files"),
        ("empty", "ok", "no files yet"),
        ("closed", "error", "DENIED"),
    ):
        asked.clear()
        named = partial(examine_place, f"s3://{place}/x", needed_by="orders", is_shared=True)
        (found,) = checked("files", named)
        assert (found.level, told in found.found, len(asked)) == (level, True, 1)


def test_pending_files_that_are_missing_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert [*examine_pending([])] == []
    assert [one.level for one in examine_pending([f"{tmp_path}/a"])] == ["ok"]
    (found,) = examine_pending([f"{tmp_path}/a", f"{tmp_path}/b"])
    assert (found.level, f"{tmp_path}/b" in found.found) == ("error", True)


def closed() -> MemorySink:
    """A sink that cannot be opened."""
    raise InvalidArgument("it is closed", hint="open it")


def test_an_error_becomes_a_check_with_its_hint_as_the_fix() -> None:
    (found,) = examine_sink(SinkSpec(f"{__name__}:closed", name="s"))
    assert (found.subject, found.level, found.fix) == ("sink s", "error", "open it")

    def broken() -> list[Check]:
        raise OSError("of a driver")

    with pytest.raises(OSError, match="driver"):
        list(checked("x", broken))
    assert [one.level for one in checked("x", broken, OSError)] == ["error"]


def test_the_file_of_a_sqlite_sink_needs_a_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(path: Path) -> list[Check]:
        return [*examine_sink(SinkSpec(kind="sql", name="copies", options={"url": f"sqlite:///{path}", "table": "t"}))]

    (missing,) = found(tmp_path / "none" / "copies.db")
    assert (missing.level, str(tmp_path / "none") in missing.found) == ("error", True)
    (tmp_path / "none").mkdir()  # what the fix says
    assert [one.level for one in found(tmp_path / "none" / "copies.db")] == ["ok"]
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (refused,) = found(tmp_path / "copies.db")
    assert (refused.level, str(tmp_path) in refused.found, "chmod" in str(refused.fix)) == ("error", True, True)


def test_a_sink_that_cannot_be_asked_is_only_opened() -> None:
    (found,) = examine_sink(SinkSpec("memory", name="m"))
    assert (found.level, "was not asked" in found.found) == ("ok", True)
