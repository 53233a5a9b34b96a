"""Which of Spark's two copies of PySpark a program imports; importing this needs no PySpark.

``spark-submit`` puts ``pyspark.zip`` on the path. Python keeps no byte code of what it imports from there: each process
compiles PySpark anew, which takes several times as long as the import. Where PySpark was installed as a package, the
same files stand beside the archive, with their byte code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def prefer_installed_pyspark() -> None:
    """Import PySpark from its package, where that is on the path and the archive is its own."""
    home = os.environ.get("SPARK_HOME")
    if home and "pyspark" not in sys.modules:
        sys.path[:] = without_archives(sys.path, Path(home))


def without_archives(path: Sequence[str], home: Path) -> list[str]:
    """Leave out the archives of PySpark that the path does not need.

    :param path: entries of ``sys.path``.
    :param home: folder of Spark, which is the package itself where PySpark was installed as one.
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
