"""``export-queue init``, ``backup`` and ``adopt``: creating, copying and moving a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from export_queue.core.cli.console import Result
from export_queue.core.cli.options import Who, command
from export_queue.core.client import Store

_SECONDS = 5.0
"""Seconds between two lines of progress."""


@command()
def adopt(store: Store, who: Who = None) -> Result:
    """Adopt a restored store where it is now, possibly on another database server.

    Transactions that were in progress at the time of the backup end. Nothing else may use the store meanwhile. The
    status shows a mark of the adoption until the complete command closes it.
    """
    ended = store.adopt(who=who)
    line = f"adopted store {store.id}; {ended} transactions that were in progress have ended"
    return Result(json={"store": store.id, "ended": ended}, lines=[line])


@command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="the new file, which must not exist")], store: Store
) -> Result:
    """Copy a SQLite store into a new file while others use the store. For PostgreSQL, use pg_basebackup or pg_dump.

    The copy contains exactly what is committed when it begins. A copy of the store's files by other programs may
    contain half a transaction or lack the last ones.
    """
    size = store.backup(target, on_progress=_progress_lines())
    lines = [f"copied store {store.id} to {target}: {size} bytes"]
    if files := store.bulk_files():
        lines.append(f"not included: {len(files)} files with bulk entries, such as {files[0]}; copy them as well")
    return Result(json={"store": store.id, "file": str(target), "bytes": size}, lines=lines)


def _progress_lines() -> Callable[[int, int], None]:
    shown = time.monotonic()

    def show_progress(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _SECONDS:
            shown = time.monotonic()
            print(f"{done >> 20} of {total >> 20} MiB", file=sys.stderr, flush=True)

    return show_progress


@command()
def init(store: Store) -> Result:
    """Create the store, or update its schema to this version; safe to repeat."""
    store.create()
    version = store.identity.schema_version
    return Result(
        json={"store": store.id, "url": store.url_safe, "schema_version": version},
        lines=[f"store {store.id} is ready in {store.url_safe} (schema version {version})"],
    )
