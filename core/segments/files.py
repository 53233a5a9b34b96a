"""Filesystems: files are written once, read, listed by folder and deleted.

A file of an object store has its final name from the start, and exists once it is closed. A local file is written under
another name, flushed to the disk and renamed, so that a crash of the machine leaves no half of it. Rows of the store,
not names or listings, say which files count.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import xxhash

from export_queue.core.errors import (
    ExportQueueError,
    InvalidArgument,
    SegmentLost,
    SegmentRefused,
    SegmentUnavailable,
    text_of,
)
from export_queue.core.store import parse_place

if TYPE_CHECKING:
    from pyarrow import fs

NEEDED = (
    "pip install 'airflow-provider-export-queue[spark]' where Spark runs, 'airflow-provider-export-queue[s3]' elsewhere"
)
_REFUSED = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|NO_SUCH_BUCKET|SIGNATURE_DOES_NOT_MATCH)\b"
)
"""Errors of an object store that a repetition would meet again. Arrow has no error number for them."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_WAY = (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""The path is wrong, now and later."""
_FOLDER = "check that the place and all its parents are folders, and that the user of this process may use them"
_OBJECT_STORES = 8
"""Maximum number of places whose connections a process keeps."""


def load_pyarrow(what: str = "segments") -> Any:
    """Import pyarrow, which a plain install does not have.

    :param what: who needs it, for the error.
    :raises InvalidArgument: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(f"pyarrow is not installed, but needed for {what}", hint=NEEDED) from error
    return pyarrow


def check_base(base: str | None) -> str:
    """Check the place of a store's files, and return it as a URL or the absolute path of a local folder.

    :raises InvalidArgument: there is none, or it may hold a secret.
    """
    if base is None:
        raise InvalidArgument(
            "the store has no place for segments",
            hint="in Store.open or StoreSpec, name a place that all writers and drains can reach: "
            "segments='s3://bucket/folder', or a shared folder; only a SQLite store has one by default",
        )
    return parse_place(base)


def joined(base: str, *names: str) -> str:
    """Return the URL of a file or folder below a place."""
    if base.startswith("/"):
        return "/".join((base.rstrip("/"), *names))
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path="/".join((parts.path.rstrip("/"), *names))))


def parent_of(url: str) -> str:
    """Return the URL of a file's folder."""
    if url.startswith("/"):
        return url.rpartition("/")[0]
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0]))


def checksum(content: Any) -> str:
    """Return the checksum of bytes: algorithm and digest."""
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


class Written:
    """A file that is being written, with its size so far."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._hash = xxhash.xxh3_128()
        self._is_abandoned = False
        self.bytes = 0

    def close(self) -> None:
        """Close the file. A local file is flushed to the disk."""
        self._stream.flush()
        if isinstance(self._stream, io.BufferedWriter):
            os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close the stream, and ignore later writes: a Parquet writer writes its footer when it is freed."""
        self._is_abandoned = True
        with contextlib.suppress(OSError):  # a full disk refuses the buffered bytes again
            self._stream.close()

    def write(self, content: Any) -> int:
        """Append bytes."""
        block = bytes(content)
        if self._is_abandoned:
            return len(block)
        self._stream.write(block)
        self._hash.update(block)
        self.bytes += len(block)
        return len(block)

    def flush(self) -> None:
        """Do nothing: closing flushes."""

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.bytes

    def end_section(self) -> str:
        """Return the checksum of the bytes since the last call."""
        found, self._hash = f"xxh3_128:{self._hash.hexdigest()}", xxhash.xxh3_128()
        return found


@contextlib.contextmanager
def create(url: str) -> Iterator[Written]:
    """Write a file: after the block it is complete, and on the disk. An error leaves nothing of it.

    :raises SegmentRefused: this process may not write it.
    :raises SegmentUnavailable: it cannot be written now.
    """
    with contextlib.ExitStack() as undo:
        with _created(url):
            written = Written(_local_stream(url) if url.startswith("/") else _object_stream(url))
        undo.callback(_delete_quietly, url)
        undo.callback(written.abandon)
        yield written
        with _created(url):
            written.close()
            if url.startswith("/"):
                _publish(Path(url))
        undo.pop_all()


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _local_stream(url: str) -> Any:
    path = Path(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    return _temporary(path).open("xb")


def _object_stream(url: str) -> Any:
    filesystem, path = _filesystem(url)
    return filesystem.open_output_stream(path)


def _publish(path: Path) -> None:
    """Give a complete local file its name, and flush the name to the disk."""
    _temporary(path).rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _delete_quietly(url: str) -> None:
    """Delete a file if possible. Clean-up tries again."""
    with contextlib.suppress(ExportQueueError, OSError):
        if url.startswith("/"):
            _temporary(Path(url)).unlink(missing_ok=True)
        delete_file(url)


def delete_files(urls: Iterable[str]) -> None:
    """Delete files that nothing refers to. Clean-up deletes those that cannot be deleted now."""
    for url in urls:
        _delete_quietly(url)


def open_file(url: str, *, size: int) -> Any:
    """Open a file for reading.

    :param size: the expected size in bytes.
    :raises SegmentLost: it does not exist, or has another size.
    :raises SegmentRefused: this process may not read it.
    :raises SegmentUnavailable: it cannot be read now.
    """
    with translated(url):
        filesystem, path = _filesystem(url)
        try:
            if url.startswith("/") and not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would block
                raise SegmentLost(f"file {url}: expected {size} bytes, found something that is not a regular file")
            source = filesystem.open_input_file(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, *_NO_WAY):
                raise
            raise SegmentLost(f"file {url}: expected {size} bytes, found no file") from error
        if (found := source.size()) != size:
            source.close()
            raise SegmentLost(f"file {url}: expected {size} bytes, found {found}")
        return source


def list_files(folder: str) -> list[str]:
    """List the files of a folder, or none if the folder does not exist."""
    pyarrow = load_pyarrow()
    with translated(folder):
        filesystem, path = _filesystem(folder)
        found = filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    return [joined(folder, one.base_name) for one in found if one.type == pyarrow.fs.FileType.File]


def exists(url: str) -> bool:
    """Return whether a file or a folder exists, by one request."""
    if url.startswith("/"):
        return Path(url).exists()
    pyarrow = load_pyarrow()
    with translated(url):
        filesystem, path = _filesystem(url)
        return bool(filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound)


def delete_file(url: str) -> None:
    """Delete a file if it exists."""
    with translated(url), contextlib.suppress(FileNotFoundError):
        filesystem, path = _filesystem(url)
        filesystem.delete_file(path)


def delete_folder(folder: str) -> None:
    """Delete a folder if it exists.

    In an object store it is the empty object that Arrow leaves after it has deleted the last file. It is deleted with
    any new files. A local folder with new files stays.
    """
    if folder.startswith("/"):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
        return
    with translated(folder), contextlib.suppress(FileNotFoundError):
        filesystem, path = _filesystem(folder)
        filesystem.delete_dir(path)


def _filesystem(url: str) -> tuple[fs.FileSystem, str]:
    pyarrow = load_pyarrow()
    if url.startswith("/"):
        return pyarrow.fs.LocalFileSystem(), url
    parts = urlsplit(url)
    server = urlunsplit((parts.scheme, parts.netloc, "", parts.query, ""))
    return _object_store(server, os.getpid()), f"{parts.netloc}{unquote(parts.path)}"


@functools.lru_cache(maxsize=_OBJECT_STORES)
def _object_store(server: str, process: int) -> fs.FileSystem:
    """Connect to an object store, once for each process: a client holds connections, and knows the bucket's region.

    :param process: its id, since a fork must not use its parent's connections.
    """
    found: fs.FileSystem = load_pyarrow().fs.FileSystem.from_uri(server)[0]
    return found


@contextlib.contextmanager
def _created(url: str) -> Iterator[None]:
    """Translate errors of creating a file: if it does not exist, it is not lost."""
    with translated(url):
        try:
            yield
        except FileExistsError as error:
            raise SegmentRefused(f"file {url}: {text_of(error)}", hint=_FOLDER) from error
        except FileNotFoundError as error:
            raise SegmentUnavailable(f"file {url}: {text_of(error)}") from error


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Translate the errors of a filesystem."""
    try:
        yield
    except FileNotFoundError as error:
        raise SegmentLost(f"file {url}: it no longer exists") from error
    except OSError as error:
        never = isinstance(error, PermissionError) or error.errno in (errno.EROFS, *_NO_WAY)
        if never or _REFUSED.search(str(error)):
            hint = _FOLDER if url.startswith("/") else None
            raise SegmentRefused(f"file {url}: {text_of(error)}", hint=hint) from error
        hint = "make room there, then try again" if error.errno in _FULL else None
        raise SegmentUnavailable(f"file {url}: {text_of(error)}", hint=hint) from error
