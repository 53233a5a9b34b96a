"""Several processes bring the flights in, one transaction a batch; some are killed, some transactions given up.

Run as a program: ``python -m demo.writers FIRST_MONTH LAST_MONTH``.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections import defaultdict
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from demo import settings
from demo.naive import NaiveIndex
from demo.progress import report
from demo.year import Batch, Flight, batches
from export_queue import Retry, Store, TransactionContext

WRITERS = 4
KILLS = 6
GIVEN_UP_EVERY = 40
"""Every batch of this number is first counted twice by mistake; its transaction is given up before the commit."""


class GivenUp(Exception):
    """The transaction is taken back on purpose."""


def bring_in(tx: TransactionContext, batch: Batch, naive: NaiveIndex, *, times: int = 1) -> None:
    """Count a batch's flights and tell the queues, in one transaction; the naive way writes right now."""
    table = tx.table("aircraft")
    flights: dict[str, list[Flight]] = defaultdict(list)
    for flight in batch.flights:
        flights[flight.aircraft].append(flight)
    moves: list[tuple[str, int, int]] = []
    for aircraft, new_ones in flights.items():
        old = table.get(aircraft, "flights", 0)
        new = old + len(new_ones) * times
        known: list[Any] = table.get(aircraft, "last", [])
        last = max(new_ones)
        if known and known > [last.at, last.number, last.origin, last.destination]:
            at, number, origin, destination = known
        else:
            at, number, origin, destination = last.at, last.number, last.origin, last.destination
        table.set(aircraft, "flights", new)
        table.set(aircraft, "last", [at, number, origin, destination])
        status = {
            "aircraft": aircraft,
            "flights": new,
            "last": {"at": at, "flight": number, "from": origin, "to": destination},
        }
        for queue_id in settings.INDEX_QUEUES:
            tx.queue(queue_id).add(aircraft, {"old": old, "new": new})
        for queue_id in settings.STATUS_QUEUES:
            tx.queue(queue_id).add(aircraft, status)
        moves.append((aircraft, old, new))
    naive.move(moves)


def write(work: list[Batch], first: int, journal: Path) -> None:
    """Bring in one writer's batches from a position on, and note each, so that a successor goes on after a kill."""
    naive = NaiveIndex()
    with Store.open(settings.store_url()) as store, journal.open("r+b", buffering=0) as noted:
        for i in range(first, len(work), WRITERS):
            batch = work[i]
            if i % GIVEN_UP_EVERY == 7 or i >= len(work) - WRITERS:
                give_up(store, batch, naive)
            store.run(
                partial(bring_in, batch=batch, naive=naive),
                idempotency_key=batch.idempotency_key,
                retry=Retry(attempts=50),
            )
            noted.seek(0)
            noted.write(b"%12d" % (i + WRITERS))


def give_up(store: Store, batch: Batch, naive: NaiveIndex) -> None:
    """Bring a batch in twice over, and take it back before the commit."""
    try:
        with store.transaction() as tx:
            bring_in(tx, batch, naive, times=2)
            raise GivenUp
    except GivenUp:
        pass


def main(first_month: int, last_month: int) -> None:
    """Let the writers loose on some months, kill some of them now and then, and wait for the rest."""
    work = batches(first_month, last_month)
    name = f"writers-{first_month}-{last_month}"
    fork = multiprocessing.get_context("fork")
    journals = [settings.folder() / f"{name}-{i}" for i in range(WRITERS)]
    for i, journal in enumerate(journals):
        journal.write_bytes(b"%12d" % i)

    def start(i: int) -> BaseProcess:
        process = fork.Process(target=write, args=(work, int(journals[i].read_bytes()), journals[i]), daemon=True)
        process.start()
        return process

    writers = [start(i) for i in range(WRITERS)]
    chance = random.Random(2013)
    kills, total = 0, len(work)
    while any(writer.is_alive() for writer in writers):
        time.sleep(0.2)
        done = sum((int(journal.read_bytes()) - i) // WRITERS for i, journal in enumerate(journals))
        report(name, done=min(done, total), total=total, note=f"{kills} writers killed")
        if kills < KILLS and done > total * (kills + 1) / (KILLS + 2):
            victim = chance.randrange(WRITERS)
            if writers[victim].is_alive():
                writers[victim].kill()
                writers[victim].join()
                writers[victim] = start(victim)
                kills += 1
        for i, writer in enumerate(writers):
            if not writer.is_alive() and writer.exitcode:
                sys.exit(f"writer {i} ended with status {writer.exitcode}")
    report(name, done=total, total=total, note=f"{kills} writers killed")


if __name__ == "__main__":
    os.nice(1)  # the drains that run meanwhile shall not starve
    main(int(sys.argv[1]), int(sys.argv[2]))
