"""What the command line says when it is used wrongly, and how it shows what others have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import run_cli

from export_queue import Entry, InvalidArgument, MemorySink, Put, Store, drain
from export_queue.core.cli.console import show

PROGRAM = [sys.executable, "-c", "from export_queue.core.cli import main; main()"]
HOSTILE = ["[/]", "[bold]order-1[/bold]", "a\nb", "\x1b[31mred", "nul\0"]


@pytest.fixture
def url(sqlite_url: str) -> str:
    run_cli("init", url=sqlite_url)
    run_cli("configure", "q", url=sqlite_url)
    return sqlite_url


@pytest.mark.parametrize(
    "content", ["u:hunter2@h/db", "//u:hunter2@h", "redis:u:hunter2@h:6379", "redis//u:hunter2@h", "garbage hunter2"]
)
def test_the_content_of_a_variable_that_names_no_sink_is_not_shown(
    url: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGET", content)
    for command in (["drain", "q", "--sink", "env:TARGET"], ["sweep", "env:TARGET"], ["readmit", "q", "env:TARGET"]):
        complaint = run_cli(*command, url=url, status=1)
        assert "hunter2" not in complaint
        assert "env:TARGET" in complaint
    monkeypatch.setenv("TARGET", json.dumps({"kind": content}))
    assert "hunter2" not in run_cli("sweep", "env:TARGET", url=url, status=1)


def test_what_follows_the_colon_of_an_unknown_sink_is_not_shown(url: str, tmp_path: Path) -> None:
    assert "hunter2" not in run_cli("sweep", "u:hunter2@h/db", url=url, status=1)
    described = tmp_path / "sink.json"
    described.write_text('{"kind": "u:hunter2@h/db"}')
    complaint = run_cli("sweep", str(described), url=url, status=1)
    assert "hunter2" not in complaint
    assert "sink.json" in complaint


def test_keys_are_shown_as_they_are_and_control_characters_as_escapes(url: str) -> None:
    with Store.open(url) as store, store.transaction() as tx:
        for key in HOSTILE:
            tx.queue("q").add(key, "[/] \x1b]0;owned")
    told = run_cli("peek", "q", "--values", url=url)
    assert "[/]" in told
    assert "[bold]order-1[/bold]" in told
    assert r"a\nb" in told
    assert r"\x1b[31mred" in told
    assert r"nul\x00" in told
    assert "\x1b" not in told
    assert "\x1b" not in run_cli("why", "q", "\x1b[31mred", url=url)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "redis://:hunter2@h"])
def test_a_name_that_no_sink_can_have_is_refused(url: str, name: str, tmp_path: Path) -> None:
    sink = f"sqlite:///{tmp_path}/o.db"
    for command in (["readmit", "q", sink], ["drain", "q", "--sink", sink]):
        complaint = run_cli(*command, "--sink-name", name, url=url, status=1)
        assert "the name of a sink: expected" in complaint
        assert "hunter2" not in complaint


def test_reasons_of_dead_letters_reach_the_terminal_as_escapes(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_exporter.py").write_text(
        "def export(entry):\n    raise ValueError(f'{entry.key} \\x1b[2Jgone\\n[bold]forged[/bold] \\x9b31m')\n"
    )
    monkeypatch.chdir(tmp_path)
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("q").add("\x1b]0;owned", 1)
    drained = subprocess.run(
        [*PROGRAM, "drain", "q", "--sink", "sqlite:///o.db", "--exporter", "hostile_exporter:export"],
        env=os.environ | {"EXPORT_QUEUE_STORE": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert drained.returncode == 1, "the queue has dead letters"
    (warning,) = [line for line in drained.stderr.splitlines() if "WARNING" in line]
    assert r"\x1b[2Jgone\n[bold]forged[/bold] \x9b31m" in warning
    told = [drained.stdout, drained.stderr, run_cli("dead", "list", "q", url=url)]
    assert not any(one in text for text in told for one in ("\x1b", "\x9b"))


def test_json_has_control_characters_as_escapes_and_says_the_same(url: str) -> None:
    hostile = "\x1b[31m \x7f \x9b31m \u202eabc é € \U0001f600 \U000e0001"
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("q").add(hostile, 1)
    told = run_cli("peek", "q", "--json", url=url)
    assert not [one for one in told if not one.isprintable() and one != "\n"]
    assert "é € \U0001f600" in told
    assert json.loads(told)[0]["key"] == hostile
    assert json.loads(run_cli("why", "q", hostile, "--json", url=url))["key"] == hostile


def test_warnings_of_commands_without_a_log_are_escaped(url: str) -> None:
    told = subprocess.run(
        [*PROGRAM, "dead", "drop", "q", "--all", "--who", "eve\x1b[2J"],
        env=os.environ | {"EXPORT_QUEUE_STORE": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert r"eve\x1b[2J dropped" in told.stderr


def test_no_control_character_of_others_reaches_a_terminal(url: str) -> None:
    key = "\x1b[31mred"

    def refuse(entry: Entry) -> list[Put]:
        raise type("\x1b]0;owned", (ValueError,), {})("\x1b]0;owned")

    with Store.open(url) as store:
        with store.transaction(idempotency_key=key) as tx:
            tx.queue("q").add(key, 1)
        drain(store, "q", MemorySink(), exporter=refuse, sink_name="s")
    for told in (
        run_cli("dead", "list", "q", url=url),
        run_cli("dead", "show", "q", "--key", key, url=url),
        run_cli("why", "q", key, url=url),
        run_cli("idempotency", key, url=url),
        run_cli("status", "--store", "sqlite:////nowhere/\x1b[31mred.db", url=url, status=1),
    ):
        assert "\x1b" not in told
        assert r"\x1b" in told


def test_one_thing_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show({"sink": "\x1b[31mred\nb", "none": None}, as_json=False)
    assert capsys.readouterr().out == "sink  \\x1b[31mred\\nb\nnone\n"


def test_a_narrow_terminal_breaks_texts_between_words_and_no_identifiers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "xterm", "FORCE_COLOR": "1", "COLUMNS": "30"}.items():
        monkeypatch.setenv(name, value)
    identifiers = {"queue": "airports/a-reader-of-a-long-name", "sink": "the one", "seq": "1795469041040000000"}
    show([{**identifiers, "error": "word " * 20}], as_json=False)
    told = capsys.readouterr().out
    assert any(all(one in line for one in identifiers.values()) for line in told.splitlines())
    assert told.count("word") == 20
    assert len([line for line in told.splitlines() if "word" in line]) > 2
    assert "…" not in told


def test_tables_are_not_cut_where_the_output_is_no_terminal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url) as store, store.transaction() as tx:
        tx.queue("q").add("k" * 300, 1)
    sink = "redis://" + "h" * 120 + ":6379/0"
    run_cli("rebind", "q", sink, url=url)
    assert sink in run_cli("status", url=url)
    line = next(line for line in run_cli("peek", "q", url=url).splitlines() if "kkk" in line)
    seq = json.loads(run_cli("peek", "q", "--json", url=url))[0]["seq"]
    assert "k" * 300 in line
    assert seq in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["why", "q", "\udcff"],
        ["peek", "q", "--key", "\udcff"],
        ["idempotency", "\udcff"],
        ["rebind", "q", "\udcff"],
        ["drain", "q", "--sink", "sqlite:///o.db", "--sink-name", "\udcff"],
        ["status", "--store", "sqlite:///\udcff.db"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(url: str, arguments: list[str]) -> None:
    assert "UTF-8" in run_cli(*arguments, url=url, status=2)


@pytest.mark.parametrize(
    ("sink", "option", "named"),
    [
        ("sqlite:///o.db", "columns=5", "columns"),
        ("sqlite:///o.db", "key=5", "key"),
        ("http://127.0.0.1:1", "index=[5]", "index"),
        ("redis://127.0.0.1:1", "key=5", "key"),
        ("redis://127.0.0.1:1", "shards=abc", "shards"),
    ],
)
def test_an_option_of_a_wrong_type_is_one_message(
    url: str, sink: str, option: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    complaint = run_cli("drain", "q", "--sink", sink, "--sink-option", option, url=url, status=1)
    assert complaint.startswith("SinkConfigurationError")
    assert named in complaint


def test_a_port_that_is_no_number_is_one_message_without_the_url(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET", "postgresql://u:hunter2@h:54a/db")
    complaint = run_cli("status", "--store", "env:TARGET", url=url, status=1)
    assert complaint.startswith("InvalidArgument")
    assert "hunter2" not in complaint


def test_an_observer_function_of_another_arity_is_one_message(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wide_observers.py").write_text("def wide(tx, row, column): pass\n")
    monkeypatch.chdir(tmp_path)
    complaint = run_cli("observe", "wide_observers:wide", url=url, status=1)
    assert complaint.startswith("InvalidArgument")
    assert "expected a function that takes the store" in complaint


def test_what_stands_behind_the_port_of_a_sink_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET", "redis://h:6379/hunter2")
    complaint = run_cli("sweep", "env:TARGET", url=url, status=1)
    assert "number of a Redis database" in complaint
    assert "hunter2" not in complaint


def test_a_variable_that_would_name_a_connection_is_shown_by_name(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("export_queue.hooks")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("airflow", "airflow.sdk"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("TARGET", "hunter2")
    for arguments in (["status", "--store", "env:TARGET"], ["drain", "q", "--sink", "env:TARGET"]):
        complaint = run_cli(*arguments, url=url, status=1)
        assert "'env:TARGET' is not a URL" in complaint
        assert "hunter2" not in complaint


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_the_output_is_one_message(url: str, options: list[str]) -> None:
    """It is found when the output is flushed, as it is at the end where the environment does not say otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from export_queue.core.cli import main; main()", "status", *options],
            env={**environment, "EXPORT_QUEUE_STORE": url},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "OSError: No space left on device\n"


def test_a_schema_that_postgresql_reserves_is_one_message(postgres_url: str) -> None:
    complaint = run_cli("init", "--schema", "pg_x", url=postgres_url, status=1)
    assert complaint.startswith("InvalidArgument")
    assert "pg_x" in complaint


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (("--schema", "other"), "schema"),
        (("--password", "env:HOME"), "password"),
        (("--behind-pooler",), "behind_pooler"),
    ],
)
def test_what_a_sqlite_store_cannot_have_is_refused_by_name(tmp_path: Path, option: tuple[str, ...], name: str) -> None:
    complaint = run_cli("init", *option, url=f"sqlite:///{tmp_path}/store.db", status=1)
    assert complaint.startswith(f"InvalidArgument: {name}: a store in SQLite is one file")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", " ", "a\0b", "a\nb", "redis://u:hunter2@h"])
def test_a_queue_is_not_bound_to_a_name_that_no_sink_can_have(url: str, name: str) -> None:
    complaint = run_cli("rebind", "q", name, url=url, status=1)
    assert "hunter2" not in complaint
    with Store.open(url) as store:
        with pytest.raises(InvalidArgument) as refused:
            store.rebind("q", name)
        assert "hunter2" not in str(refused.value)
        assert store.queue("q").sink is None


@pytest.mark.parametrize("name", ["a\nb", "redis://u:hunter2@h"])
def test_a_drain_binds_no_queue_to_a_name_that_no_sink_can_have(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    complaint = run_cli("drain", "q", "--sink", "sqlite:///o.db", "--sink-name", name, url=url, status=1)
    assert "hunter2" not in complaint
    with Store.open(url) as store:
        assert store.queue("q").sink is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain", "q", "--sink", "sqlite:///o.db", "--range", "5:0"],
        ["drain", "q", "--sink", "sqlite:///o.db", "--max-dead", "-1"],
        ["drain", "q", "--sink", ""],
        ["sweep", ""],
        ["dead", "drop", "q"],
        ["dead", "show", "q"],
    ],
)
def test_a_command_line_that_is_wrong_in_itself_ends_with_2(url: str, arguments: list[str]) -> None:
    run_cli(*arguments, url=url, status=2)


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from export_queue.core.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "sqlalchemy", "export_queue.core.cli.sinks", "sqlite3"])
def test_ctrl_c_before_a_command_begins_is_one_line(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module), "status"],
        env=os.environ | {"EXPORT_QUEUE_STORE": "sqlite:///none.db"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "stopped\n")


def test_ctrl_c_while_a_store_is_opened_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "open", interrupted)
    assert run_cli("status", url=url, status=130) == "stopped\n"
