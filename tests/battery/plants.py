"""Changes to the functions of a PostgreSQL store, made in the database as it is: pauses, clock steps, a broken gate."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg

from export_queue import Store
from export_queue.core.store.postgresql.statements import NOW
from export_queue.core.store.postgresql.transactions import PostgresSteps

SCHEMA = "export_queue"
PAUSE, LONG_PAUSE = (f"perform pg_sleep(random() * {seconds});" for seconds in (0.005, 0.03))
RARE_PAUSE = "if random() < {} then perform pg_sleep(random() * 0.005); end if;"

_DRAWING = re.compile(r"[^;]*\bsetval\(.*?;\s*end if;", re.DOTALL)
_GATE = re.compile(r"pg_advisory_lock\((\w+)\)")
_FREED = re.compile(r"perform pg_advisory_unlock\(\w+\);\s*exception")


def connect(url: str) -> psycopg.Connection[Any]:
    """Connect to a store's database as psycopg does."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def pause_before_registering(url: str, pause: str = PAUSE) -> None:
    """Let time pass between drawing an id and registering it, under the gate: that must be harmless."""
    _edit(url, "xq_draw", lambda text: _once(_DRAWING, lambda found: f"{found[0]} {pause}", text))


def pause_now_and_then(url: str) -> None:
    """Let time pass where the right order of two steps matters, and load alone would hardly show a wrong one.

    These are: an id is drawn, then registered; active rows and outcomes are read after the list of locks, never before.
    """
    pause_before_registering(url, RARE_PAUSE.format(0.01))
    pause_behind_listing(url, RARE_PAUSE.format(0.02))
    pause_before_listing(url, RARE_PAUSE.format(0.05))


def pause_before_listing(url: str, pause: str = LONG_PAUSE) -> None:
    """Let time pass before the list of locks is read: harmless, unless active rows were read before."""
    first = re.compile(r"\A(.*?\bbegin\b)", re.DOTALL | re.IGNORECASE)
    _edit(url, "xq_unfinished", lambda text: _once(first, lambda found: f"{found[1]} {pause}", text))


def pause_behind_listing(url: str, pause: str = LONG_PAUSE) -> None:
    """Let time pass between the list of locks and the rows that say what has ended: snapshots must still agree."""
    listing = re.compile(r"listed := .*?;", re.DOTALL)
    _edit(url, "xq_unfinished", lambda text: _once(listing, lambda found: f"{found[0]} {pause}", text))


def free_the_gate_too_early(url: str) -> None:
    """Hold the gate over the drawing of an id only, and let time pass before the id is registered."""

    def edit(text: str) -> str:
        gate = _GATE.search(text)
        assert gate, f"expected a gate in {text}"
        drawing = _DRAWING.search(text)
        assert drawing, f"expected the drawing of an id in {text}"
        assert gate.start() < drawing.end(), f"expected the gate before the drawing in {text}"
        behind = _once(_FREED, "exception", text[drawing.end() :])
        return f"{text[: drawing.end()]} perform pg_advisory_unlock({gate[1]}); {LONG_PAUSE}{behind}"

    _edit(url, "xq_draw", edit)


def pause_around_the_readers(url: str) -> None:
    """Let time pass in commits when the readers of their queues are held, and again when these have the entries."""
    held = re.compile(r"perform [\w.\"]*xq_hold_readers_v1\(entry_queue\);")
    given = re.compile(r"join [\w.\"]*xq_queue q on coalesce\(q\.parent, q\.number\) = e\.q and not q\.fans_out;")

    def edit(text: str) -> str:
        for place in (held, given):
            text = _once(place, lambda found: f"{found[0]} {RARE_PAUSE.format(0.2)}", text)
        return text

    _edit(url, "xq_commit", edit)


def give_the_store_a_clock_of_its_own(url: str) -> None:
    """Let the store's clock differ from the server's by what :func:`set_clock` says."""
    with connect(url) as connection:
        connection.execute(f"create table {SCHEMA}.battery_clock (ms bigint)".encode())
        connection.execute(f"insert into {SCHEMA}.battery_clock values (0)".encode())
    own = f"({NOW} + (select ms from {SCHEMA}.battery_clock))"
    _edit(url, "xq_(draw|start|commit|expire|has_clock_stayed)", lambda text: text.replace(NOW, own))


def follow_the_stores_clock(store: Store) -> None:
    """Let a process take snapshots by the clock of a store that has one of its own; no function does that."""
    steps = store.database.dialect.steps
    if isinstance(steps, PostgresSteps):
        own = f"({NOW} + (select ms from {SCHEMA}.battery_clock))"
        text = steps._snapshot.text.replace(NOW.encode(), own.encode())
        steps._snapshot = replace(steps._snapshot, text=text)


def set_clock(url: str, milliseconds: int) -> None:
    """Set by how much the store's clock goes before the server's."""
    with connect(url) as connection:
        connection.execute(f"update {SCHEMA}.battery_clock set ms = %s".encode(), (milliseconds,))


def _once(pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str], text: str) -> str:
    changed, count = pattern.subn(new, text)
    assert count == 1, f"expected {pattern.pattern!r} once, found it {count} times in {text}"
    return changed


def _edit(url: str, name: str, edit: Callable[[str], str]) -> None:
    """Change all versions of functions, and see that they are as planted; those that only call a newer one stay.

    :param name: a regular expression for their names without the version.
    """
    functions = (
        "select pg_get_functiondef(p.oid) from pg_proc p "
        "where p.pronamespace = %s::regnamespace and p.proname ~ ('^(' || %s || ')_v[0-9]+$') "
        "and p.prosrc !~ ('xq_(commit|stage)_v[0-9]+[(]')"
    )
    with connect(url) as connection:
        before = [text for (text,) in connection.execute(functions.encode(), (SCHEMA, name))]
        assert before, f"expected functions {name}_v…"
        planted = [edit(text) for text in before]
        for text in planted:
            connection.execute(text.encode())
        after = [text for (text,) in connection.execute(functions.encode(), (SCHEMA, name))]
    assert sorted(after) == sorted(planted)
    assert not set(after) & set(before)
