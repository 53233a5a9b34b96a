"""Finding what a submission needs on the worker: Spark, its Python, Java."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from export_queue.core.errors import ConfigurationError

SECTION = "export_queue"


class SparkNotFound(ConfigurationError):
    """The worker has no Spark or no Java in the searched location."""


@dataclass(frozen=True, slots=True)
class SparkPrograms:
    """The programs of one Spark installation."""

    submit: str
    """Path or name of ``spark-submit``."""
    python: str | None
    """The Python that has PySpark, if Spark came with one."""

    def has_spark_env(self, variables: Mapping[str, str]) -> bool:
        """Return whether Spark reads further variables from ``spark-env.sh``."""
        folder = variables.get("SPARK_CONF_DIR") or Path(self.submit).resolve().parent.parent / "conf"
        return (Path(folder) / "spark-env.sh").is_file()


def configured_spark_home() -> str:
    """Return the option ``spark_home`` of Airflow's configuration section ``export_queue``."""
    from airflow.sdk import conf

    return str(conf.get(SECTION, "spark_home", fallback="") or "").strip()


def find_spark(home: str | None, *, binary: str | None, path: str | None = None) -> SparkPrograms:
    """Find ``spark-submit``.

    :param home: folder that holds ``bin/spark-submit``: a virtual environment or a Spark distribution; empty to look
        on the PATH.
    :param binary: name or path of the program instead of ``spark-submit``.
    :param path: the PATH to search; by default this process's.
    :raises SparkNotFound: it does not exist.
    """
    if binary and Path(binary).is_absolute():
        return _programs(Path(binary), found_in=f"spark_binary={binary!r}")
    if home:
        return _programs(Path(home).expanduser() / "bin" / (binary or "spark-submit"), found_in=f"spark_home={home!r}")
    found = shutil.which(binary or "spark-submit", path=path)
    if found is None:
        raise SparkNotFound(
            f"no {binary or 'spark-submit'} on the worker's PATH",
            hint=f"set [{SECTION}] spark_home (AIRFLOW__{SECTION.upper()}__SPARK_HOME) to the folder of a virtual "
            "environment that holds airflow-provider-export-queue[spark], or of a Spark distribution",
        )
    return _programs(Path(found), found_in="PATH")


def _programs(submit: Path, *, found_in: str) -> SparkPrograms:
    if not os.access(submit, os.X_OK) or submit.is_dir():
        raise SparkNotFound(f"{found_in}: {submit} is not a program")
    python = submit.parent / "python"
    return SparkPrograms(str(submit), str(python) if os.access(python, os.X_OK) else None)


def find_java(variables: Mapping[str, str]) -> str:
    """Find the Java that ``spark-submit`` will start.

    :param variables: its environment.
    :raises SparkNotFound: there is no Java.
    """
    if home := variables.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if os.access(program, os.X_OK):
            return str(program)
        raise SparkNotFound(f"no Java: JAVA_HOME is {home!r}, and there is no program {program}")
    found = shutil.which("java", path=variables.get("PATH"))
    if found is None:
        raise SparkNotFound(
            "no Java: JAVA_HOME is not set, and there is no java on the worker's PATH",
            hint="install Java 17 or newer, for instance the Debian package openjdk-17-jre-headless",
        )
    return found
