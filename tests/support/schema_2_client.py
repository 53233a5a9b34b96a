"""A client of schema 2, run as a program by the code of that time, which is ``tests/data/schema_2.zip``.

Its words are: ``create`` [sequence | clock], ``count NAME QUEUE``, ``step QUEUE``, ``bound QUEUE``, ``long QUEUE``.
All but the first two say "ready" when the store is open, and go on line by line of what they are told.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psycopg

from export_queue.core.client import Store
from export_queue.core.errors import ConflictError
from export_queue.core.store.creation import create

URL = os.environ["EXPORT_QUEUE_STORE"]


def say(*words: object) -> None:
    print(*words, flush=True)


def wait() -> None:
    """Go on when told."""
    sys.stdin.readline()


def count(store: Store, name: str, queue: str) -> None:
    """Count up one cell and add the number, until told to stop by a file; each that is acknowledged is told."""
    number = 0
    while not Path(os.environ["EXPORT_QUEUE_STOP"]).exists():
        try:
            with store.transaction() as tx:
                table = tx.table("counts")
                table.set("all", "n", b"%d" % (int(table.get("all", "n") or b"0") + 1))
                tx.queue(queue).add(f"{name}-{number}", number)
        except ConflictError:
            continue
        number += 1
        say("counted")


def step(store: Store, queue: str) -> None:
    """Add an entry whenever told."""
    number = 0
    while sys.stdin.readline():
        with store.transaction() as tx:
            tx.queue(queue).add(f"step-{number}", number)
        number += 1
        say("added")


def connect() -> Any:
    if URL.startswith("sqlite"):
        connection = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        connection.execute("begin immediate")
        return connection
    connection = psycopg.connect(URL.replace("+psycopg", ""))
    connection.execute("select 1")
    return connection


def bound(store: Store, queue: str) -> None:
    """Add in a SQL transaction of the user's, and commit that when told."""
    connection = connect()
    with store.transaction(connection=connection) as tx:
        tx.queue(queue).add("bound", 1)
    say("left")
    wait()
    connection.commit()


def long(store: Store, queue: str) -> None:
    """Stage an entry, stage another one when told, commit when told."""
    with store.transaction(long=True) as tx:
        tx.queue(queue).add("staged", 1)
        tx.flush()
        say("staged")
        wait()
        tx.queue(queue).add("later", 2)


def main() -> None:
    act, *arguments = sys.argv[1:]
    with Store.open(URL) as store:
        try:
            if act == "create":
                create(store.database, id_source=arguments[0] if arguments else None)  # type: ignore[arg-type]
                store.configure_queue("orders", buckets=8, buckets_per_range=8)
            elif act == "count":
                count(store, *arguments)
            else:
                with store.transaction() as tx:
                    tx.queue(arguments[0])  # known from now on
                say("ready")
                if act != "step":
                    wait()
                {"step": step, "bound": bound, "long": long}[act](store, *arguments)
        except Exception as error:  # also those of drivers
            say("ended", type(error).__name__, error)
            sys.exit(3)
    say("done")


main()
