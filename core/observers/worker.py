"""A process that only runs observers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

from export_queue.core.errors import ExportQueueError
from export_queue.core.observers.rounds import Processed
from export_queue.core.retry import Retry

LONGEST_PAUSE = 30.0
"""Maximum number of seconds between two attempts to reach a store."""

log = logging.getLogger("export_queue.observers")


def work(
    process: Callable[[], Processed],
    *,
    stopped: Callable[[], bool],
    wait: Callable[[float], object],
    poll: float,
    random: Random,
) -> Processed:
    """Run rounds until stopped. If the store cannot be reached, wait for it.

    :param process: runs one round.
    :param stopped: returns whether to stop; a round in progress checks it too.
    :param wait: waits for a number of seconds, or until stopped.
    :param poll: seconds between two rounds if nothing is due, randomized by half so that workers spread out.
    :returns: the sum of all rounds; ``left`` is that of the last one.
    """
    pauses = Retry(first_pause=poll, longest_pause=max(poll, LONGEST_PAUSE), random=random.random)
    total = Processed()
    unreachable = 0
    while not stopped():
        try:
            found = process()
        except ExportQueueError as error:
            if not error.transient:
                raise
            unreachable += 1
            pause = pauses.pause(unreachable)
            log.warning("the round has ended early, next in %.1f s: %s", pause, error.message)
            wait(pause)
            continue
        unreachable = 0
        total = total.then(found)
        if not (found.done and found.left):
            wait(pauses.pause(1))
    return total
