"""A driver that nobody waits for records in the store that it lives, and stops when its submission is revoked."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from export_queue.core.errors import LeaseLost
from export_queue.core.locks import Owner, show_life
from export_queue.core.spark.watchdog import stop_driver
from export_queue.core.store import Database

BEAT_SECONDS = 10.0
"""Time between two signs of life: a part of ``SILENT_SECONDS``, after which a driver counts as dead."""

log = logging.getLogger("export_queue")


@contextlib.contextmanager
def life_shown(
    database: Database,
    owner: Owner,
    *,
    stop: Callable[[str], None] = stop_driver,
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
) -> Iterator[None]:
    """Show life during a block, from its start, in a thread.

    The block may be waiting for Spark, which takes no notice of a revocation; therefore the thread stops the driver.

    :param owner: the attempt of the driver.
    :param stop: called with the reason, once, after the attempt was revoked.
    :param wait: waits for an event, at most a number of seconds; returns whether the event was set.
    """
    ended = threading.Event()

    def show_until_ended() -> None:
        while True:
            try:
                show_life(database, owner)
            except LeaseLost as lost:
                if not ended.is_set():
                    stop(lost.message)
                return
            except Exception as error:  # the store may answer again
                log.debug("the sign of life could not be stored: %s", error)
            if wait(ended, BEAT_SECONDS):
                return

    thread = threading.Thread(target=show_until_ended, name="export-queue-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(BEAT_SECONDS)
