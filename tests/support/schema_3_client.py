"""A client of schema 3, run as a program by the code of that time, which is ``tests/data/schema_3.zip``.

Its words are: ``create`` [sequence | clock], ``count NAME QUEUE``, ``long QUEUE``, ``commit TRANSACTION``, ``abort
TRANSACTION``. The last three say "ready" when the store is open, and go on line by line of what they are told.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

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
                tx.queue(queue).add(f"{name}-{number}", b"counted")
        except ConflictError:
            continue
        number += 1
        say("counted")


def long(store: Store, queue: str) -> None:
    """Stage an entry, stage another one when told, commit when told."""
    with store.transaction(long=True) as tx:
        tx.queue(queue).add("staged", b"1")
        tx.flush()
        say("staged")
        wait()
        tx.queue(queue).add("later", b"2")


def commit(store: Store, transaction: str) -> None:
    """Commit a transaction that another process began."""
    store.commit(json.loads(transaction))


def abort(store: Store, transaction: str) -> None:
    """Abort a transaction that another process began."""
    store.abort(json.loads(transaction))


def main() -> None:
    act, *arguments = sys.argv[1:]
    with Store.open(URL) as store:
        try:
            if act == "create":
                create(store.database, id_source=arguments[0] if arguments else None)  # type: ignore[arg-type]
                store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
            elif act == "count":
                count(store, *arguments)
            else:
                _ = store.identity
                say("ready")
                wait()
                {"long": long, "commit": commit, "abort": abort}[act](store, *arguments)
        except Exception as error:  # also those of drivers
            say("ended", type(error).__name__, error)
            sys.exit(3)
    say("done")


main()
