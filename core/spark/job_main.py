"""The program of every job: ``spark-submit job_main.py ARGUMENTS``."""

import sys
from pathlib import Path

# Spark puts this program's folder on the path: its modules would hide a user's modules of the same name.
_FOLDER = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _FOLDER]

from export_queue.core.spark.pyspark_path import prefer_installed_pyspark  # noqa: E402

prefer_installed_pyspark()

from export_queue.core.spark.driver import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
