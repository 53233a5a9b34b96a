"""``export-queue init``, ``backup`` and ``adopt``: creating a store, copying and moving one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from export_queue.core.cli.console import say, show_one
from export_queue.core.cli.options import AsJson, StoreOptions, Who, command


@command()
def adopt(
    store: StoreOptions,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let a store that was restored live where it is, in another cluster of servers too.

    Transactions that were in progress at the backup end. Nothing else may use the store meanwhile. The status shows
    a mark of it, until the complete command closes it.
    """
    with store.open() as opened:
        ended = opened.adopt(who=who)
        if as_json:
            show_one({"store": opened.id, "ended": ended}, as_json=True)
        else:
            say(f"store {opened.id} lives here now; {ended} transactions that were in progress have ended")


@command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="the new file, which must not exist")],
    store: StoreOptions,
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite store into a new file, while others use the store; of PostgreSQL, use pg_basebackup or pg_dump.

    The copy holds exactly what is committed when it begins. A copy of the store's files by other programs may hold half
    a transaction, or none of the last ones.
    """
    with store.open() as opened:
        size = opened.backup(target, on_progress=_telling(5.0))
        if as_json:
            show_one({"store": opened.id, "file": str(target), "bytes": size}, as_json=True)
        else:
            say(f"store {opened.id} is copied to {target}: {size} bytes")
            if files := opened.bulk_files():
                say(f"not in it: {len(files)} files with bulk entries, as {files[0]}; copy them as well")


def _telling(seconds: float) -> Callable[[int, int], None]:
    """Make a function that prints progress, so many seconds apart."""
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= seconds:
            told = time.monotonic()
            print(f"{done >> 20} of {total >> 20} MiB", file=sys.stderr, flush=True)

    return tell


@command()
def init(
    store: StoreOptions,
    as_json: AsJson = False,
) -> None:
    """Create the store, or complete it; safe to repeat."""
    with store.open() as opened:
        opened.create()
        version = opened.identity.schema_version
        if as_json:
            show_one({"store": opened.id, "url": opened.url_safe, "schema_version": version}, as_json=True)
        else:
            say(f"store {opened.id} is ready in {opened.url_safe} (schema version {version})")
