"""Choosing between Spark's two copies of PySpark; importing this needs no PySpark.

``spark-submit`` puts ``pyspark.zip`` on the path. Python stores no byte code for modules in an archive, so each process
compiles PySpark again, which takes several times as long as importing it. If PySpark was installed as a package, the
same files exist next to the archive, with byte code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def prefer_installed_pyspark() -> None:
    """Import PySpark from its package if it is on the path and the archive belongs to it."""
    home = os.environ.get("SPARK_HOME")
    if home and "pyspark" not in sys.modules:
        sys.path[:] = without_archives(sys.path, Path(home))


def without_archives(path: Sequence[str], home: Path) -> list[str]:
    """Return a path without the archives of PySpark that it does not need.

    :param path: entries of ``sys.path``.
    :param home: folder of Spark; the package itself if PySpark was installed as a package.
    """
    packages = home.resolve().parent
    if home.name != "pyspark" or str(packages) not in {str(Path(entry).resolve()) for entry in path if entry}:
        return list(path)
    spare = {"pyspark.zip": packages / "pyspark" / "__init__.py", "py4j-": packages / "py4j" / "__init__.py"}
    archives = home / "python" / "lib"
    return [
        entry
        for entry in path
        if Path(entry).parent != archives
        or not any(Path(entry).name.startswith(name) and file.is_file() for name, file in spare.items())
    ]
