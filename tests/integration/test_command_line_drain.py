"""Draining from the command line, and naming stores and sinks there."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from tests.support.command_line import run_cli
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from export_queue import InvalidArgument, Owner, Range, SecretNotFound, SinkConfigurationError, Store
from export_queue.core.cli.naming import SINK_PASSWORD, named_sink
from export_queue.core.locks import claim

pytestmark = pytest.mark.one_store("what a drain prints is the same on each store")

PROGRAM = [sys.executable, "-c", "from export_queue.core.cli import main; main()"]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    with Store.open(found) as store:
        store.create()
        store.configure_queue("orders", buckets=16, buckets_per_range=4)
        with store.transaction() as tx:
            for n in range(20):
                tx.queue("orders").add(f"k{n}", {"n": n})
    return found


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    return tmp_path / "copies.db"


def count(copies: Path) -> int:
    with sqlite3.connect(copies) as connection:
        (found,) = connection.execute("SELECT count(*) FROM orders_live").fetchone()
    connection.close()
    return int(found)


def test_a_drain_brings_everything_and_prints_its_report(url: str, copies: Path) -> None:
    line = run_cli("drain", "orders", "--sink", f"sqlite:///{copies}", url=url)
    assert line.startswith("orders [0, 16) → sqlite:")
    assert "20 read = 20 acknowledged + 0 dead + 0 left" in line
    assert count(copies) == 20
    report = json.loads(run_cli("drain", "orders", "--sink", f"sqlite:///{copies}", "--json", url=url))
    assert (report["queue"], report["read"], report["problem"], report["lowest_seq"]) == ("orders", 0, None, None)


def test_the_options_of_a_drain_reach_it(
    url: str, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_exports.py").write_text(
        "from export_queue import Put\n"
        "def export(entry):\n"
        "    if entry.value['n'] == 7:\n"
        "        raise ValueError('not seven')\n"
        "    yield Put('orders', entry.key, {'n': entry.value['n'], 'more': 'x'})\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--sink", f"sqlite:///{copies}", "--sink-option", 'columns={"n": "integer"}', "--sink-name", "copies"]
    options += ["--exporter", "my_exports:export", "--dead-letters", "allow"]
    half = json.loads(run_cli("drain", "orders", *options, "--range", "0:8", "--max-dead", "1", "--json", url=url))
    assert (half["ranges"], half["sink"]) == ([[0, 8]], "copies")
    assert isinstance(half["lowest_seq"], str)
    rest = json.loads(run_cli("drain", "orders", *options, "--json", url=url))
    assert half["read"] + rest["read"] == 20
    assert half["dead"] + rest["dead"] == 1
    assert count(copies) == 19
    with Store.open(url) as store:
        assert store.queue("orders").sink == "copies"
    assert "expected two rising numbers" in run_cli("drain", "orders", *options, "--range", "0-8", url=url, status=2)


def test_a_drain_that_leaves_dead_letters_has_status_1_and_prints_its_report(url: str, copies: Path) -> None:
    options = ["--sink", f"sqlite:///{copies}", "--sink-option", 'columns={"n": "integer"}']
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("orders").add("odd", {"n": "no number"})
    assert "orders: 1 dead letters; allowed: 0" in run_cli("drain", "orders", *options, url=url, status=1)
    assert count(copies) == 20
    report = json.loads(run_cli("drain", "orders", *options, "--dead-letters", "1", "--json", url=url))
    assert (report["read"], report["problem"]) == (0, None)
    following = ("drain", "orders", *options, "--follow", "--dead-letters", "allow")
    assert "a follower does not end" in run_cli(*following, url=url, status=1)
    assert 'expected "fail"' in run_cli("drain", "orders", *options, "--dead-letters", "-3", url=url, status=1)


def test_a_refused_entry_may_stop_a_drain(url: str, copies: Path) -> None:
    options = ["--sink", f"sqlite:///{copies}", "--exporter", "no_such_module:name"]
    assert "ExporterError" in run_cli("drain", "orders", *options, url=url, status=1)
    options = ["--sink", f"sqlite:///{copies}", "--exporter", "builtins:len", "--on-error", "fail"]
    complaint = run_cli("drain", "orders", *options, url=url, status=1)
    assert "EntryRejected" in complaint
    assert "stopped by EntryRejected" in complaint, "people read the report with the error"


def test_an_error_that_may_pass_has_a_status_of_its_own(url: str, copies: Path) -> None:
    with Store.open(url) as store:
        queue = store.queue("orders")
        claim(store.database, queue, [Range(0, 4)], owner=Owner("other", "1"), lease_seconds=600)
    sink = ["--sink", f"sqlite:///{copies}"]
    assert "other" in run_cli("drain", "orders", *sink, "--if-locked", "fail", url=url, status=75)
    assert "others hold" in run_cli("drain", "orders", *sink, "--if-locked", "skip", url=url)
    assert "LockNotAvailable" in run_cli("drain", "orders", *sink, "--lock-timeout", "0", url=url, status=75)
    assert "DrainTimedOut" in run_cli("drain", "orders", *sink, "--time-limit", "1", url=url, status=75)
    assert "UnknownQueue" in run_cli("drain", "none", *sink, url=url, status=1)
    assert "Missing option '--sink'" in run_cli("drain", "orders", url=url, status=2)


def process(url: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "EXPORT_QUEUE_STORE": url, "TERM": "xterm", "COLUMNS": "150"}
    return subprocess.Popen([*PROGRAM, *arguments], env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]


WAITING_SINK = """
import time
from pathlib import Path
from export_queue import MemorySink

class Waiting(MemorySink):
    def apply(self, operations):
        Path("reached").touch()
        time.sleep(60)
        return super().apply(operations)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_drain_cleanly(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    (tmp_path / "waiting_sink.py").write_text(WAITING_SINK)
    arguments = ["drain", "orders", "--sink", "waiting_sink:Waiting", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(url, *arguments, cwd=tmp_path, **pipes) as running:
        wait_until((tmp_path / "reached").exists, "the drain reached no sink")
        running.send_signal(number)
        told, complained = running.communicate(timeout=60)
    assert running.returncode == status, complained
    assert "Traceback" not in complained
    assert complained.startswith("stopped")
    report = json.loads(told)
    assert (report["acknowledged"], report["left"]) == (0, report["read"])
    assert report["problem"]["error_class"] in ("KeyboardInterrupt", "Terminated")
    with Store.open(url) as store:
        queue = store.queue("orders")
        leases = claim(store.database, queue, queue.units(), owner=Owner.unique(), lease_seconds=60)
        assert len(leases) == 4, "nothing is held any more"


def test_a_bar_is_drawn_on_a_terminal(sqlite_url: str, copies: Path) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", buckets=16, buckets_per_range=4)
        with store.transaction() as tx:
            tx.queue("orders").add_many((f"k{n}", n) for n in range(20))
    ours, theirs = pty.openpty()
    sink = ["--sink", f"sqlite:///{copies}", "--sink-name", "copies"]
    with process(sqlite_url, "drain", "orders", *sink, stdout=subprocess.PIPE, stderr=theirs) as running:
        os.close(theirs)
        shown = read_terminal(ours)
        told, _ = running.communicate(timeout=60)
    os.close(ours)
    assert running.returncode == 0, shown
    assert "━" in shown
    assert "orders → copies" in shown
    assert "20/20" in shown
    assert told.startswith("orders [0, 16) → copies: 20 read"), "the report goes where programs read"


def read_terminal(descriptor: int) -> str:
    """Read what a program writes to a terminal, without its escapes, until it has ended."""
    found, until = b"", time.monotonic() + 60
    while time.monotonic() < until:
        if select.select([descriptor], [], [], 1)[0]:
            try:
                more = os.read(descriptor, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            found += more
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode("utf-8", "replace"))


def test_lines_elsewhere_are_plain(url: str, copies: Path) -> None:
    with Store.open(url) as store:
        queue = store.queue("orders")
        claim(store.database, queue, [Range(0, 4)], owner=Owner("other", "1"), lease_seconds=600)
    sink = ["--sink", f"sqlite:///{copies}", "--lock-timeout", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(url, "drain", "orders", *sink, **pipes) as running:
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 75
    assert "\x1b" not in complained
    assert "waiting for" in complained


# ---- names ----


def test_passwords_are_refused_on_the_command_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "redis://:hunter2@127.0.0.1:1/0"
    for arguments in (
        ["drain", "orders", "--sink", secret],
        ["readmit", "orders", secret],
        ["sweep", secret],
        ["ddl", "orders", "--sink", "postgresql://me:hunter2@127.0.0.1:1/d"],
        ["status", "--store", "postgresql://me:hunter2@127.0.0.1:1/d"],
    ):
        complaint = run_cli(*arguments, url=url, status=1)
        assert "hunter2" not in complaint
        assert "env:NAME" in complaint
    monkeypatch.setenv("CACHE", secret)
    assert "InvalidArgument" not in run_cli("ddl", "orders", "--sink", "env:CACHE", url=url, status=1).partition(":")[2]


def test_a_store_is_named_by_a_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE", url)
    (row,) = json.loads(run_cli("status", "--store", "env:MY_STORE", "--json", url="sqlite:///none"))
    assert (row["queue"], row["entries"]) == ("orders", 20)
    assert "no variable NOT_THERE" in run_cli("status", "--store", "env:NOT_THERE", url=url, status=1)


def test_a_redis_server_with_a_password_is_named_by_a_variable(
    url: str, redis_server: RedisServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE", f"redis://:{redis_server.password}@127.0.0.1:{redis_server.port}/9")
    line = run_cli("drain", "orders", "--sink", "env:CACHE", "--sink-option", "key=order:$id", url=url)
    assert "20 acknowledged" in line
    assert f"redis://127.0.0.1:{redis_server.port}/9: " in line
    assert redis_server.password not in line
    assert redis_client.dbsize() == 0, "of another database"


@pytest.mark.parametrize(
    ("text", "kind", "options", "password"),
    [
        ("redis://cache.example", "redis", {"host": "cache.example", "port": 6379, "db": 0}, None),
        (
            "rediss://me:p%40ss@cache.example:7000/3",
            "redis",
            {"host": "cache.example", "port": 7000, "db": 3, "username": "me", "ssl": True},
            "p@ss",
        ),
        ("redis://:w0rd@h", "redis", {"host": "h", "port": 6379, "db": 0}, "w0rd"),
        (
            "https://me:w0rd@es.example:9200/",
            "elasticsearch",
            {"hosts": "https://es.example:9200", "username": "me"},
            "w0rd",
        ),
        (
            "opensearch+https://me:w0rd@os.example/prefix/",
            "opensearch",
            {"hosts": "https://os.example/prefix", "username": "me"},
            "w0rd",
        ),
        ("opensearch+http://[::1]:9200", "opensearch", {"hosts": "http://[::1]:9200"}, None),
        ("http://[::1]:9200", "elasticsearch", {"hosts": "http://[::1]:9200"}, None),
        ("sqlite:////tmp/x.db", "sql", {"url": "sqlite:////tmp/x.db"}, None),
        (
            "postgresql+psycopg://me:w%2Ford@db.example:5433/app?sslmode=require",
            "sql",
            {"url": "postgresql+psycopg://me@db.example:5433/app?sslmode=require"},
            "w/ord",
        ),
        ("mysql+pymysql://me@db/app", "sql", {"url": "mysql+pymysql://me@db/app"}, None),
        ("my_sinks:Folder", "my_sinks:Folder", {}, None),
        ('{"kind": "memory", "options": {"name": "x"}}', "memory", {"name": "x"}, None),
    ],
)
def test_a_text_names_a_sink(
    text: str, kind: str, options: dict[str, object], password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_SINK", text)
    with named_sink("env:THE_SINK", name="mine") as spec:
        assert (spec.kind, spec.options, spec.name) == (kind, options, "mine")
        assert spec.secrets == ({} if password is None else {"password": f"env:{SINK_PASSWORD}"})
        assert os.environ.get(SINK_PASSWORD) == password
        assert password is None or password not in spec.to_json()
    assert SINK_PASSWORD not in os.environ


def test_options_and_secrets_complete_what_a_text_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "copies.json"
    file.write_text('{"kind": "redis", "options": {"host": "h"}}')
    for text in (str(file), "redis://h"):
        with named_sink(text, options=["key=c:$id", "wait_replicas=1"], secrets=["password=env:PW"]) as spec:
            assert (spec.options["key"], spec.options["wait_replicas"]) == ("c:$id", 1)
            assert spec.secrets == {"password": "env:PW"}


@pytest.mark.parametrize(
    ("text", "options", "secrets", "error", "expected"),
    [
        ("redis://h", ["host=x"], [], InvalidArgument, "host of the sink: set twice"),
        ("redis://h", ["key"], [], InvalidArgument, "name=value"),
        ("redis://h/x", [], [], InvalidArgument, "number of a Redis database"),
        ("redis://h/1?db=2", [], [], InvalidArgument, "two databases"),
        ("redis://h?nonsense=1", [], [], InvalidArgument, "unknown option 'nonsense'"),
        ("https://h:9200?x=1", [], [], InvalidArgument, "--sink-option"),
        ("redis://h:x", [], [], InvalidArgument, "cannot be read"),
        ("://x", [], [], InvalidArgument, "not a database URL"),
        ("{", [], [], InvalidArgument, "expected JSON"),
        ("none.json", [], [], InvalidArgument, "none.json: No such file"),
        ("env:NOT_THERE", [], [], SecretNotFound, "no variable NOT_THERE"),
        ("redis://h", [], ["password=hunter2"], SinkConfigurationError, "not a reference"),
        ("redis://h", ["password=hunter2"], [], SinkConfigurationError, "its name says that it is a secret"),
    ],
)
def test_a_text_that_names_no_sink_is_told_so(
    text: str, options: list[str], secrets: list[str], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected) as caught, named_sink(text, options=options, secrets=secrets):
        pass
    assert "hunter2" not in str(caught.value)


def test_a_connection_needs_airflow(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("export_queue.hooks")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("airflow", "airflow.sdk"):
        monkeypatch.setitem(sys.modules, name, None)
    for arguments in (["status", "--store", "airflow:exports"], ["status", "--store", "exports"]):
        complaint = run_cli(*arguments, url=url, status=1)
        assert "'exports' is not a URL" in complaint
        assert "expected sqlite:///path or postgresql://user@host/db" in complaint
    complaint = run_cli("drain", "orders", "--sink", "redis_default", url=url, status=1)
    assert "'redis_default' is not a URL" in complaint
    assert "airflow-provider-export-queue[airflow]" in complaint


# ---- what a target lacks ----


def test_what_a_sink_lacks_is_printed_and_run(copies: Path) -> None:
    sink = ["--sink", f"sqlite:///{copies}", "--sink-option", 'columns={"n": "integer"}']
    printed = run_cli("ddl", "orders", *sink, url="")
    assert "CREATE TABLE" in printed
    assert run_cli("ddl", "orders", *sink, url="") == printed
    assert run_cli("ddl", "orders/search", *sink, url="") == printed, "a subscription feeds its queue's table"
    (ran,) = json.loads(run_cli("ddl", "orders", *sink, "--run", "--json", url=""))
    assert (ran["statements"], ran["ran"]) == (printed, True)
    assert run_cli("ddl", "orders", *sink, "--run", url="") == ""
    sink[-1] = 'columns={"n": "integer", "group": "text"}'
    assert 'ADD COLUMN "group" text' in run_cli("ddl", "orders", *sink, "--run", url="")
    assert "nothing to prepare" in run_cli("ddl", "orders", "--sink", '{"kind": "memory"}', url="", status=1)
