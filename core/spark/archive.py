"""The library as one file that Spark ships to its driver and executors."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from export_queue.core.errors import ConfigurationError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_SHIPPED = {".py", ".sql"}


def package_archive() -> Path:
    """Build the archive of ``export_queue`` and its ``core``, once for each state of the code.

    The rest of the provider needs Airflow, which Spark's environment does not have.

    :returns: a file, named after its content, in a folder of this user's below the system's temporary one.
    """
    content = _pack()
    path = _own_folder() / f"export_queue-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)  # the archive is there whole or not at all, also where two processes build it
    return path


def _pack() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    root = _spec("export_queue")
    if root.origin is None:
        raise ConfigurationError("the package export_queue has no files that could be shipped to Spark")
    yield "export_queue/__init__.py", Path(root.origin)
    # The import system is asked: in an editable install core does not lie below the package's own folder.
    for folder in _spec("export_queue.core").submodule_search_locations or ():
        for path in Path(folder).rglob("*"):
            if path.suffix in _SHIPPED:
                yield f"export_queue/core/{path.relative_to(folder).as_posix()}", path


def _spec(name: str) -> ModuleSpec:
    found = importlib.util.find_spec(name)
    if found is None:
        raise ConfigurationError(f"the package {name} cannot be found, so it cannot be shipped to Spark")
    return found


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"export-queue-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="export-queue-"))  # the folder is another user's, whose code must not run
