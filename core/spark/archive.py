"""Packing the library into one file that Spark ships to its driver and executors."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import BinaryIO

from export_queue.core.errors import ConfigurationError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_SHIPPED = {".py", ".sql"}
_UNCHECKED = (1).to_bytes(4, "little")
"""Flag of byte code that is valid whatever the time stamp of its source; PEP 552."""


def package_archive() -> Path:
    """Build the archive of ``export_queue`` and ``export_queue.core``, once for each state of the code.

    The rest of the provider needs Airflow, which Spark's environment does not have. The archive contains the byte code
    of each module for this Python; a Python of another version compiles the source.

    :returns: a file, named after its content, in this user's folder below the system's temporary folder.
    """
    files = [(name, path.read_bytes()) for name, path in sorted(_files())]
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, content in files:
        digest.update(f"{name} {len(content)} ".encode() + content)
    path = _own_folder() / f"export_queue-{digest.hexdigest()[:16]}.zip"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            _pack(file, files)
        Path(temporary).replace(path)  # complete or absent, also if two processes build it
    return path


def _pack(file: BinaryIO, files: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            if name.endswith(".py"):
                archive.writestr(zipfile.ZipInfo(f"{name}c", _EPOCH), _byte_code(name, content), zipfile.ZIP_DEFLATED)


def _byte_code(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)


def _files() -> Iterator[tuple[str, Path]]:
    root = _spec("export_queue")
    if root.origin is None:
        raise ConfigurationError("the package export_queue has no files that could be shipped to Spark")
    yield "export_queue/__init__.py", Path(root.origin)
    # asks the import system: in an editable install, core is not below the package's own folder
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
    return Path(tempfile.mkdtemp(prefix="export-queue-"))  # the folder belongs to another user, whose code must not run
