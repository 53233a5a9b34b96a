"""A client of schema 4, run as a program by the code of that time, which is ``tests/data/schema_4.zip``.

Its words are: ``create`` [sequence | clock], ``count NAME QUEUE``, ``drain QUEUE FILE``, ``drain-on QUEUE FILE``,
``claim QUEUE TASK ATTEMPT``, ``clean-up``. A sink is a SQLite file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from export_queue.core.client import Store
from export_queue.core.drain import DrainReport, drain
from export_queue.core.errors import ConflictError, LeaseLost
from export_queue.core.locks import Owner, claim, hold, release
from export_queue.core.maintenance import maintain
from export_queue.core.sinks import SinkSpec
from export_queue.core.store.creation import create

URL = os.environ["EXPORT_QUEUE_STORE"]


def say(*words: object) -> None:
    print(*words, flush=True)


def wait() -> None:
    """Go on when told."""
    sys.stdin.readline()


def is_stopped() -> bool:
    return Path(os.environ["EXPORT_QUEUE_STOP"]).exists()


def count(store: Store, name: str, queue: str) -> None:
    """Count up one cell and add the number, until told to stop by a file; each that is acknowledged is told."""
    number = 0
    while not is_stopped():
        try:
            with store.transaction() as tx:
                table = tx.table("counts")
                table.set("all", "n", b"%d" % (int(table.get("all", "n") or b"0") + 1))
                tx.queue(queue).add(f"{name}-{number}", b"counted")
        except ConflictError:
            continue
        number += 1
        say("counted")


def drain_into(store: Store, queue: str, file: str) -> DrainReport:
    """Drain what nobody else holds."""
    sink = SinkSpec("sql", {"url": f"sqlite:///{file}"}, name="copies")
    return drain(store, queue, sink, if_locked="skip")


def drain_once(store: Store, queue: str, file: str) -> None:
    """Drain, and tell how many entries were brought and the units that others held."""
    report = drain_into(store, queue, file)
    say(report.acknowledged, *report.skipped)


def drain_on(store: Store, queue: str, file: str) -> None:
    """Drain again and again, until told to stop by a file; tell how many entries were brought in all."""
    brought = 0
    while not is_stopped():
        brought += drain_into(store, queue, file).acknowledged
    say(brought)


def claim_units(store: Store, queue_id: str, task: str, attempt: str) -> None:
    """Claim what is free and tell it; when told, enter a critical section; when told, give everything back."""
    queue = store.queue(queue_id)
    leases = claim(store.database, queue, queue.units(), owner=Owner(task, attempt), lease_seconds=600)
    say(*(lease.range for lease in leases))
    wait()
    try:
        with store.database.begin() as work:
            for lease in leases:
                hold(work, lease)
        say("held")
    except LeaseLost:
        say("lost")
    wait()
    release(store.database, leases)


def clean_up(store: Store) -> None:
    """Clean up, and tell how many files were deleted."""
    say(maintain(store.database).segment_files)


def main() -> None:
    act, *arguments = sys.argv[1:]
    with Store.open(URL) as store:
        try:
            if act == "create":
                create(store.database, id_source=arguments[0] if arguments else None)  # type: ignore[arg-type]
                store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
            else:
                acts = {
                    "count": count,
                    "drain": drain_once,
                    "drain-on": drain_on,
                    "claim": claim_units,
                    "clean-up": clean_up,
                }
                acts[act](store, *arguments)
        except Exception as error:  # also those of drivers
            say("ended", type(error).__name__, error)
            sys.exit(3)
    say("done")


main()
