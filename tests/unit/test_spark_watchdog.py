"""Signals that tell a driver of Spark to end, at every moment."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = dedent("""
    import signal, sys, threading, time
    from export_queue.core.spark import watchdog

    start, is_first = threading.Thread.start, iter([True])

    def interrupted(thread):
        if thread.name == "export-queue-stop" and next(is_first, False):
            signal.raise_signal(signal.SIGTERM)
        start(thread)

    stop = watchdog.note_stops(late_seconds=float(sys.argv[1]))
    threading.Thread.start = interrupted
    watchdog._why.append("spark-submit has gone")
    for _ in range(3):
        signal.raise_signal(signal.SIGTERM)
    assert stop()
    print("told to stop", flush=True)
    time.sleep(float(sys.argv[2]))
""")


@pytest.mark.parametrize(
    ("late", "works_on", "status"), [(60.0, 0.0, 0), (0.01, 60.0, 143)], ids=["in time", "too late"]
)
def test_a_follower_whose_parent_has_gone_is_stopped_once_by_signals_that_come_together(
    late: float, works_on: float, status: int
):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(late), str(works_on)],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("told to stop\n", status)
