"""A client of schema 1, run as a program by the code of that time, which is ``tests/data/schema_1.zip``.

Its words are: ``create`` [sequence | clock], ``write``, ``count NAME``, ``push``, ``long``.
"""

from __future__ import annotations

import os
import sys
import time

from export_queue.core.client import Store
from export_queue.core.errors import ConflictError
from export_queue.core.store.creation import create


def say(*words: object) -> None:
    print(*words, flush=True)


def write(store: Store) -> None:
    """Leave something of everything that a store keeps."""
    store.configure_queue("orders", buckets=8, buckets_per_range=8)
    for number in range(5):
        with store.transaction() as tx:
            tx.table("stock").set("apple", "n", b"%d" % number)
            tx.table("stock").set(f"row{number}", "n", b"%d" % number)
            tx.queue("orders").add(f"key{number}", {"n": number})
    with store.transaction() as tx:
        tx.table("stock").delete("row0", "n")


def count(store: Store, name: str) -> None:
    """Count up one cell for ever; each time that is acknowledged is told."""
    number = 0
    while True:
        try:
            with store.transaction() as tx:
                table = tx.table("counts")
                table.set("all", "n", b"%d" % (int(table.get("all", "n") or b"0") + 1))
                tx.queue("orders").add(f"{name}-{number}", number)
        except ConflictError:
            continue
        number += 1
        say("counted")


def push(store: Store) -> None:
    """Write rising numbers into one cell for ever, and read nothing."""
    number = 0
    while True:
        number += 1
        with store.transaction() as tx:
            tx.table("counts").set("all", "n", b"%d" % number)
        say("counted")


def hold(store: Store) -> None:
    with store.transaction(long=True) as tx:
        tx.table("stock").set("pear", "n", b"1")
        tx.flush()
        say("holding")
        time.sleep(600)


def main() -> None:
    act, *arguments = sys.argv[1:]
    with Store.open(os.environ["EXPORT_QUEUE_STORE"]) as store:
        try:
            if act == "create":
                create(store.database, id_source=arguments[0] if arguments else None)  # type: ignore[arg-type]
            elif act == "write":
                write(store)
            elif act == "count":
                count(store, *arguments)
            elif act == "push":
                push(store)
            else:
                hold(store)
        except Exception as error:  # also those of drivers
            say("ended", type(error).__name__, error)
            sys.exit(3)
    say("done")


main()
