"""Airflow's ``execution_timeout`` without a wait for it."""

from __future__ import annotations

import signal

from tests.support.waiting import wait_until


def end_the_time_of_airflow() -> None:
    """Let the alarm that Airflow has set for the running task ring now, and work on until it does."""
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    wait_until(lambda: False, "Airflow's alarm does not ring")
