"""Places of files: the file of a SQLite store, and the place of bulk entries.

Files are renamed only within their folder, so that no rename can cross from one filesystem to another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from export_queue.core.doctor.check import Check
from export_queue.core.segments import exists

LEAST_FREE = 1 << 30
"""Bytes of free space below which a warning is given."""
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "fuse.glusterfs")
_REMOTE_FUSE = ("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse")
_USER = "the user of this process"


def filesystem_of(path: str, mounts: str) -> str | None:
    """Return the kind of filesystem on which a path is.

    :param path: without symbolic links.
    :param mounts: the content of ``/proc/self/mounts``.
    """
    found = [(point, kind) for _, point, kind, *_ in map(str.split, mounts.splitlines())]
    above = [
        (len(point), kind)
        for point, kind in ((one.replace("\\040", " ").rstrip("/"), kind) for one, kind in found)
        if path == point or path.startswith(f"{point}/")
    ]
    return max(above, key=lambda one: one[0])[1] if above else None


def examine_store_file(path: Path) -> Iterator[Check]:
    """Check the file of a SQLite store, which exists."""
    subject = "file of the store"
    kind = filesystem_of(os.path.realpath(path), _mounts())
    if kind in (*_NETWORK, *_REMOTE_FUSE):
        yield Check.error(
            subject,
            f"{path} is on {kind}: SQLite's log and locks work on one machine's own disks only",
            fix="move the file to a local disk (export-queue backup FILE copies it), or use PostgreSQL",
        )
    real = Path(os.path.realpath(path))
    unwritable = [str(one) for one in (real, real.parent, *_beside(real)) if not os.access(one, os.R_OK | os.W_OK)]
    if unwritable:
        fix = f"let {_USER} read and write them (chown, chmod): SQLite keeps a log and a lock next to the file"
        yield Check.error(subject, f"not readable and writable: {', '.join(unwritable)}", fix=fix)
    else:
        yield _space(subject, real.parent, f"{path} ({path.stat().st_size} bytes) is readable and writable")


def _beside(file: Path) -> list[Path]:
    return [one for suffix in ("-wal", "-shm", ".lock") if (one := Path(f"{file}{suffix}")).exists()]


def examine_place(place: str | None, *, needed_by: str | None, is_shared: bool) -> Iterator[Check]:
    """Check the place of bulk entries.

    :param place: a URL or an absolute path; None if the store has none.
    :param needed_by: a queue that needs the place, if any does.
    :param is_shared: whether other machines use the store, so that they must reach the place.
    """
    subject = "place of segments"
    if place is None:
        if needed_by is None:
            yield Check.ok(subject, "none, and no queue needs one: entries are rows")
        else:
            fix = "name a place that all programs share, as segments=… of Store.open or of the connection"
            yield Check.warning(subject, f"none, but queue {needed_by!r} is compacted into files", fix=fix)
    elif not place.startswith("/"):
        state = "it has files" if exists(place) else "it has no files yet"
        yield Check.ok(subject, f"{place} answers; {state}; whether files can be written was not tried")
    else:
        yield from _examine_folder(Path(place), subject, is_shared=is_shared)


def _examine_folder(folder: Path, subject: str, *, is_shared: bool) -> Iterator[Check]:
    above = next(one for one in (folder, *folder.parents) if one.exists())
    if not above.is_dir():
        yield Check.error(subject, f"{above} is no folder", fix="name another place, or remove the file")
    elif not os.access(above, os.R_OK | os.W_OK | os.X_OK):
        fix = f"let {_USER} read and write it (chown, chmod), or name another place"
        yield Check.error(subject, f"{above} is not readable and writable", fix=fix)
    elif above != folder and is_shared:
        yield Check.warning(
            subject,
            f"{folder} does not exist: if a shared folder is not mounted here, files go to the disk of this machine",
            fix="mount the shared folder, or create it if this is the first machine",
        )
    else:
        what = "is readable and writable" if above == folder else "will be created with the first file"
        yield _space(subject, above, f"{folder} {what}")


def examine_pending(files: Sequence[str]) -> Iterator[Check]:
    """Check that some files with pending entries exist."""
    missing = [file for file in files if not exists(file)]
    if missing:
        yield Check.error(
            "pending files",
            f"{len(missing)} of {len(files)} files do not exist here, such as {missing[0]}",
            fix="mount the place of segments here as on the machine that wrote them; if they are lost: "
            "docs/segments.md#if-a-file-is-missing-or-damaged",
        )
    elif files:
        yield Check.ok("pending files", f"{len(files)} files with pending entries exist")


def _space(subject: str, folder: Path, found: str) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{found}; {free >> 20} MiB are free"
    if free < LEAST_FREE:
        return Check.warning(subject, found, fix=f"free space on the disk of {folder}: commits fail when it is full")
    return Check.ok(subject, found)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text("utf-8", "replace")
    except OSError:
        return ""
