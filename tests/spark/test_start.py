"""The deadline of Spark's start."""

import os
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

PROGRAM = dedent("""
    import signal, sys, time
    from export_queue.core.errors import SparkJobFailed
    from export_queue.core.spark.start import start_deadline

    before = signal.getsignal(signal.SIGALRM)
    try:
        with start_deadline(float(sys.argv[1])):
            time.sleep(60)
    except SparkJobFailed as error:
        assert signal.getsignal(signal.SIGALRM) is before
        print(error)
""")


@pytest.mark.parametrize("seconds", ["0.0", "1e-9", "0.01"])
def test_a_start_ends_at_its_deadline_also_where_no_time_is_left(seconds: str, spark_home: Path) -> None:
    done = subprocess.run(
        [spark_home / "bin" / "python", "-c", PROGRAM, seconds],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    assert "has not started" in done.stdout
