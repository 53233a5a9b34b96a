"""The page about the command line says what the program does: commands, options, fields of JSON, statuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.command_line import run_cli
from typer.main import get_command

from export_queue import MemorySink, Owner, Store, drain
from export_queue.core.cli.console import FAILED, TRY_AGAIN
from export_queue.core.cli.program import app
from export_queue.core.locks import claim

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
SHARED = {
    "The store": ("--store", "--password", "--schema", "--behind-pooler"),
    "The sink": ("--sink", "--sink-option", "--sink-secret", "--sink-name"),
}


def commands(group: Any = None, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), command


COMMANDS = dict(commands())


def heading(name: str) -> str:
    arguments = [one for one in COMMANDS[name].params if one.param_type_name == "argument"]
    shown = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    return "### `" + " ".join(["export-queue", name, *shown]) + "`"


def option_row(option: Any) -> str:
    """Write an option as the page has it."""
    name = "/".join([*option.opts, *option.secondary_opts]) + (f" {option.metavar}" if option.metavar else "")
    default = "" if option.default in (None, False) else f"`{option.default}`"
    return f"| `{name}` | {option.help} | {default} |"


def section(title: str) -> str:
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"the page has no heading {title}"
    return found[1]


def own_options(name: str) -> list[Any]:
    shared = {"--help", "--json", *(option for options in SHARED.values() for option in options)}
    return [one for one in COMMANDS[name].params if one.param_type_name == "option" and one.opts[0] not in shared]


def test_every_command_has_its_heading_and_there_are_no_others() -> None:
    assert re.findall(r"^### `export-queue.*`$", PAGE, re.MULTILINE) == [heading(name) for name in COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_those_of_the_program(name: str) -> None:
    assert re.findall(r"^\| `--.*$", section(heading(name)), re.MULTILINE) == list(map(option_row, own_options(name)))


@pytest.mark.parametrize("title", SHARED)
def test_the_shared_options_are_those_of_the_program(title: str) -> None:
    options = {one.opts[0]: one for one in COMMANDS["drain"].params}
    rows = re.findall(r"^\| `--.*$", section(f"## {title}"), re.MULTILINE)
    assert rows == [option_row(options[name]) for name in SHARED[title]]


def test_the_statuses_are_those_of_the_program() -> None:
    found = set(map(int, re.findall(r"^\| (\d+) \|", section("## Exit statuses"), re.MULTILINE)))
    assert found == {0, FAILED, 2, TRY_AGAIN, 130, 143}


def fields(name: str) -> set[str]:
    """Read the fields of a command's JSON from the page."""
    (line,) = re.findall(r"^JSON(?:.|\n(?!\n))*", section(heading(name)), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", line.partition(": ")[2].partition(". ")[0]))


def delivered() -> list[tuple[str, Any]]:
    """What the drain of the next test delivers."""
    return [("anna", 1), ("ben", '"2"')]


def test_the_fields_of_json_are_those_of_the_program(tmp_path: Path) -> None:
    url, copies = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/copies.db"
    seen: dict[str, Any] = {}

    def run(name: str, *arguments: str) -> Any:
        told = run_cli(*name.split(), *arguments, "--json", url=url)
        seen[name] = found = json.loads(told)
        return found

    run("init")
    run("doctor")
    run("configure", "orders", "--buckets", "16", "--buckets-per-range", "4")
    run("configure", "airports", "--subscription", "search")
    run("subscribe", "airports", "cache")
    run("waive-first-load", "airports/cache")
    run("first-load", "airports/cache", "--source", f"{__name__}:delivered")
    run("unsubscribe", "airports", "cache", "--discard")
    run("alter", "orders", "--max-value-bytes", "1000")
    run("configure-table", "totals")
    with Store.open(url) as store:
        store.run(lambda tx: tx.table("totals").set("anna", "n", b"1"))
        run("table get", "totals", "anna")
        store.run(lambda tx: tx.queue("orders").add("anna", 1), idempotency_key="k")
        run("peek", "orders", "--values")
        run("idempotency", "k")
        report = drain(store, "orders", MemorySink(), sink_name="s", exporter=lambda entry: [entry])
        assert report.dead == 1
        run("why", "orders", "anna")
        run("reports", "orders")
        begun = store.begin()
        run("transactions list")
        run("transactions abort", begun["id"])
        run("dead list", "orders")
        run("dead show", "orders", "--key", "anna", "--value")
        run("dead retry", "orders")
        run("rebind", "orders", copies)
        run("complete", "orders")
        with store.transaction(long=True) as tx:
            tx.queue("orders").add_batch(pa.table({"key": ["ben"], "value": ['"2"']}))
        run("configure", "remembered", "--state")
        run("mirror", "remembered", "--query", "select 'a' as key, 1 as value")
        run("state", "remembered")
        run("replay", "remembered", "--all")
        run("resend", "remembered", "a")
        run("add", "remembered", "b", "2")
        run("rollback", "remembered", "2100-01-01", "--dry-run")
        rebuild(run, store, copies)
        run("segments", "orders")
        run("compact", "orders", "--dry-run")
        for _ in range(2):
            with store.transaction(long=True) as tx:
                tx.queue("orders").add_batch(pa.table({"key": ["ben"], "value": ['"2"']}))
        run("fall-back", "orders", *run("compact", "orders", "--least", "2")["files"])
        run("vacuum", "--dry-run")
        run("ddl", "orders", "--sink", copies)
        run("drain", "orders", "--sink", copies)
        run("wait", "orders", "--timeout", "0")
        run("verify", "orders", "--sink", copies, "--source", f"{__name__}:delivered")
        run("sweep", copies)
        run("readmit", "orders", copies)
        queue = store.queue("orders")
        claim(store.database, queue, queue.units(), owner=Owner.unique(), lease_seconds=60)
        run("locks")
    run("dead drop", "orders", "--all")
    run("status")
    run("maintain")
    run("metrics")
    run("backup", f"{tmp_path}/backup.db")
    run("adopt")
    url = "postgresql://owner@127.0.0.1/exports"  # no connection is made
    run("grants", "writer", "web")
    assert set(seen) == {name for name, command in COMMANDS.items() if any(p.name == "as_json" for p in command.params)}
    for name, found in seen.items():
        one = found[0] if isinstance(found, list) else found
        assert set(one) == fields(name), name
        kind = re.search(r"^JSON (list|object)", section(heading(name)), re.MULTILINE)
        assert kind, name
        assert kind[1] == ("list" if isinstance(found, list) else "object"), name
    assert not [one for name, found in seen.items() for one in numbers_above_a_double(found)], "ids are text"


def rebuild(run: Any, store: Store, copies: str) -> None:
    run("configure", "books", "--state", "--subscription", "main")
    store.run(lambda tx: tx.queue("books").add("a", 1))
    run("drain", "books/main", "--sink", copies)
    named = ("books/main", "--sink", copies)
    start = (*named, "--pointer", "books_now", "--new-option", "table=books-2")
    run("rebuild start", *start)
    run("rebuild cancel", "books/main")
    run("rebuild start", *start)
    run("rebuild switch", *named)
    run("rebuild back", *named)
    assert run("rebuild status")[0]["new_entries"] == 0
    run("rebuild switch", *named)
    assert run("rebuild finish", "books/main")["phase"] == "finished"
    assert run("rebuild status", "books/main")[0]["entries"] is None


def numbers_above_a_double(found: Any) -> list[int]:
    if isinstance(found, dict):
        return [one for value in found.values() for one in numbers_above_a_double(value)]
    if isinstance(found, list):
        return [one for value in found for one in numbers_above_a_double(value)]
    return [found] if type(found) is int and found >= 1 << 53 else []
