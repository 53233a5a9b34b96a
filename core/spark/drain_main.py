"""The program of a drain job: ``spark-submit drain_main.py ARGUMENTS``."""

import os
import sys

# Spark puts this program's folder on the path: its modules would hide a user's modules of the same name.
sys.path[:] = [
    entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.dirname(os.path.realpath(__file__))
]

from export_queue.core.spark.driver import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
