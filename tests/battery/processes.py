"""The processes of a run: clients, and janitors that clean up and end what others began."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from pathlib import Path

import sqlalchemy as sa
from tests.battery import plants
from tests.battery.journals import Journal
from tests.battery.shared import Shared
from tests.battery.ways import Way
from tests.battery.wills import Heir
from tests.battery.workload import Client
from tests.support.waiting import wait_until

from export_queue import ExportQueueError, Store
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.store import schema
from export_queue.core.store.sqlite.transactions import SqliteSteps
from export_queue.core.transactions import expire, scan_cells, take_snapshot

JANITOR_PAUSE = 0.01
PAGE = 3
"""Cells that one page of a scan holds, so that small scans take several."""


FOR_GOOD = 10 * 365 * 24 * 3600.0
SNAPSHOT_AGE = 10.0
"""Seconds for which clean-up leaves what a short transaction may read: longer than those of the battery take."""


def clean_up(store: Store, *, thoroughly: bool = True) -> int:
    """Clean up as an operator's maintenance does; returns how many ended transactions were removed.

    :param thoroughly: else what was swept stays invalid for the time being.
    """
    if not thoroughly:
        expire(store.database)
        return 0
    patience = Patience(seconds=SNAPSHOT_AGE, between_calls=0)
    # No outcome may go, whatever the clock says: the run asks for all of them at its end.
    return maintain(store.database, patience=patience, keep_outcomes=FOR_GOOD).pruned


def end_all(store: Store) -> None:
    """Let time out what is in progress, and wait until the store has forgotten it; nobody may be at work."""

    def is_settled() -> bool:
        for kept in store.kept_invalid():  # an interruption has hit a participant's roll-back
            store.forget_invalid(kept.id)
        clean_up(store)
        return not take_snapshot(store.database).excluded

    with store.database.begin() as work:
        work.connection.execute(sa.update(schema.active).values(deadline_ms=1))
    wait_until(is_settled, "an id stays in progress")


def run_client(way: Way, url: str, path: Path, number: int, session: int, seed: int, shared: Shared) -> None:
    """Be a client; the target of a process."""
    generator = random.Random(seed)
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # a traceback for each connection that is cut
    assert scan_cells.__kwdefaults__
    scan_cells.__kwdefaults__["page"] = PAGE
    with way.open(url, number=number, clock=shared.clock) as store:
        pause_before_registering(store)
        plants.follow_the_stores_clock(store)
        Client(store, Journal(path), number, session, generator, shared).run()


def run_janitor(way: Way, url: str, path: Path, number: int, session: int, seed: int, shared: Shared) -> None:
    """Clean up and execute wills all the time; the target of a process."""
    generator = random.Random(seed)
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    with way.open(url, number=number, clock=shared.clock) as store:
        heir = Heir(store, Journal(path), generator, shared)
        while not shared.stop.value:
            with contextlib.suppress(ExportQueueError):
                heir.execute_all()
                shared.pruned.value += clean_up(store, thoroughly=generator.random() < 0.3)
            time.sleep(JANITOR_PAUSE)


def pause_before_registering(store: Store) -> None:
    """Let time pass now and then after an id was drawn, before it is registered; PostgreSQL's functions do it there."""
    steps = store.database.dialect.steps
    if isinstance(steps, SqliteSteps):
        draw = steps._draw

        def draw_slowly(raw):  # type: ignore[no-untyped-def]
            own = draw(raw)
            if random.random() < 0.01:
                time.sleep(random.random() * 0.005)
            return own

        steps._draw = draw_slowly  # type: ignore[method-assign]
