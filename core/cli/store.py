"""``export-queue init``, ``grants``, ``backup`` and ``adopt``: creating, sharing, copying and moving a store."""

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
from export_queue.core.errors import InvalidArgument
from export_queue.core.store import RIGHTS, ROLES
from export_queue.core.store import grants as statements_for

_NAME_BYTES = 63
"""PostgreSQL cuts longer names, which may then be those of another role."""
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
def grants(
    role: Annotated[str, typer.Argument(metavar="ROLE", help=f"what it is for: {', '.join(ROLES)}")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="name of the role in the database; it must exist")],
    store: Store,
) -> Result:
    """Print the statements that give a database role its rights on the store. The store's owner runs them.

    A PostgreSQL role can have the rights of several. The statements take no right away. Nothing is changed, and the
    database is not asked.
    """
    rights = next((RIGHTS[one] for one in ROLES if one == role), None)
    if rights is None:
        raise InvalidArgument(f"ROLE: expected {', '.join(ROLES[:-1])} or {ROLES[-1]}, found {role!r}")
    if name in ("", "public", "none") or "\0" in name or len(name.encode()) > _NAME_BYTES:
        raise InvalidArgument(
            f"NAME: expected the name of one role of the database, 1 to {_NAME_BYTES} bytes and not public, which is "
            f"everybody, found {name!r}"
        )
    server = store.database.dialect.server
    if server is None:
        raise InvalidArgument(
            f"store {store.url_safe}: expected PostgreSQL, found SQLite, whose users are those who may write the file"
        )
    statements = statements_for(rights, server.schema, name)
    return Result(json={"role": role, "name": name, "statements": statements}, lines=[f"{one};" for one in statements])


@command()
def init(store: Store) -> Result:
    """Create the store, or update its schema to this version; safe to repeat."""
    store.create()
    version = store.identity.schema_version
    return Result(
        json={"store": store.id, "url": store.url_safe, "schema_version": version},
        lines=[f"store {store.id} is ready in {store.url_safe} (schema version {version})"],
    )
