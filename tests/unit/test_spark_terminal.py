"""The bar of a Spark drain, on a terminal that may go away."""

import os
import pty
import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = dedent("""
    import logging, os, sys
    from export_queue.core.drain import Left
    from export_queue.core.spark.terminal import shown_bar

    def tell(line):
        os.write(int(sys.argv[1]), line.encode())

    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    with shown_bar("orders → copies") as on_left:
        on_left(Left(10, 0.0))
        tell("shown ")
        sys.stdin.readline()
        on_left(Left(5, 0.0))
        logging.info("a line of the log")
    tell("drained")
""")


@pytest.mark.parametrize("is_output_there", [False, True])
def test_a_drain_goes_on_where_its_terminal_has_gone(is_output_there: bool):
    ours, theirs = pty.openpty()
    told, telling = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(telling)],
        stdin=subprocess.PIPE,
        stdout=theirs if is_output_there else subprocess.DEVNULL,
        stderr=theirs,
        pass_fds=[telling],
    ) as driver:
        os.close(theirs)
        os.close(telling)
        assert os.read(told, 100) == b"shown "
        os.close(ours)
        driver.communicate(b"\n", timeout=60)
    assert os.read(told, 100) == b"drained"
    os.close(told)
