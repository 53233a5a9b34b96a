"""The Sparks that the peers load on, and their jars; what this machine lacks is downloaded once, into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import maven
from tests.support.maven import Artifact

ROOT = Path(__file__).parents[2]
OWN = "4.3"
"""The Spark that this library is installed in."""
OLD = "3.5.9"
"""The newest Spark on which spark-redis and the DataFrame writer of elasticsearch-spark load."""
JARS = {
    OWN: [
        Artifact(
            "org.postgresql", "postgresql", "42.7.8", "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"
        )
    ],
    OLD: [
        Artifact(
            "com.redislabs",
            "spark-redis_2.12",
            "3.0.0",
            "7ce5234442c00ed0e8aa552a1b9b6823d3e4ceb68328253dd508798e8ea7a3c7",
        ),
        Artifact("redis.clients", "jedis", "3.9.0", "6e2d300c31fccd2be59dbf21d3308348413ba6e2b3b1f21a1c08bb635f1ad14a"),
        Artifact(
            "org.apache.commons",
            "commons-pool2",
            "2.11.1",
            "ea0505ee7515e58b1ac0e686e4d1a5d9f7d808e251a61bc371aa0595b9963f83",
        ),
        Artifact(
            "org.elasticsearch",
            "elasticsearch-spark-30_2.12",
            "9.5.6",
            "15849ea96d98e2a01201c147e6ec89eb8d7eb22a7eea80de3b5e6261ac9e670f",
        ),
        Artifact(
            "commons-httpclient",
            "commons-httpclient",
            "3.1",
            "dbd4953d013e10e7c1cc3701a3e6ccd8c950c892f08d804fabfac21705930443",
        ),
    ],
}
"""By Spark; all that each needs, since nothing else is looked up."""


def prepare() -> dict[str, tuple[Path, list[Path]]]:
    """Return, by Spark, the Python that has it and the jars that go with it.

    :raises FileNotFoundError: something is missing and cannot be had.
    """
    own = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark")).absolute() / "bin" / "python"
    if not own.exists():
        raise FileNotFoundError(f"Spark is missing in {own.parents[1]}: ./run setup builds it")
    return {OWN: (own, _jars(OWN)), OLD: (_older(OLD), _jars(OLD))}


def _jars(spark: str) -> list[Path]:
    return [_jar(artifact) for artifact in JARS[spark]]


def _jar(artifact: Artifact) -> Path:
    if not (maven.cache() / artifact.file).exists():
        _tell(f"downloading {artifact.file}")
    return maven.fetch(artifact)


def _older(version: str) -> Path:
    """Return the Python of an environment with an older Spark; it is installed where it is missing."""
    home = maven.cache() / f"spark-{version}"
    python, whole = home / "bin" / "python", home / "installed"
    if whole.exists():
        return python
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    _tell(f"installing PySpark {version}, about 320 MB, into {home}")
    pip = [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={version}"]
    for command in ([str(base), "-m", "venv", "--clear", str(home)], pip):
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        if done.returncode:
            raise FileNotFoundError(f"Spark {version} is missing and could not be installed: {done.stderr[-500:]}")
    whole.touch()
    return python


def _tell(text: str) -> None:
    print(f"  {text} …", file=sys.stderr, flush=True)  # beside the figures, which may be JSON
