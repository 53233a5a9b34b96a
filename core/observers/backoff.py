"""How long a failed observer waits; no I/O, clock or randomness."""

from __future__ import annotations

FIRST_MS = 1_000
LONGEST_MS = 300_000


def delay_ms(attempts: int, jitter: float) -> int:
    """Return the wait after a failure: it doubles each time, and its spread parts observers that failed together.

    :param attempts: how often it has failed, 1 or more.
    :param jitter: 0 to 1, at random.
    :returns: milliseconds, half to all of 1 s, 2 s, 4 s … 5 min.
    """
    whole = LONGEST_MS if attempts > 16 else min(LONGEST_MS, FIRST_MS << (attempts - 1))
    return round(whole * (0.5 + 0.5 * jitter))
