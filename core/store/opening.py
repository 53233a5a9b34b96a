"""From the URL of a store to its database."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchModuleError

from export_queue.core.drivers import check_sql_url, parse_url, password_of
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import hide_secrets
from export_queue.core.store.database import Database
from export_queue.core.store.limits import Limits
from export_queue.core.store.place import parse_place
from export_queue.core.store.seams import Clock

DEFAULT_SCHEMA = "export_queue"
MOST_SCHEMA_BYTES = 63
URL_HINT = "expected postgresql+psycopg://user@host:port/database or sqlite:////absolute/path"


def open_database(
    url: str,
    *,
    password: str | Callable[[], str] | None = None,
    schema: str = DEFAULT_SCHEMA,
    behind_pooler: bool = False,
    clock: Clock | None = None,
    client: str | None = None,
    limits: Limits | None = None,
    segments: str | None = None,
) -> Database:
    """Prepare connections to a store; nothing is sent yet.

    :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
    :param password: a password that is kept out of the URL, or a function that returns it for each new connection.
    :param schema: the PostgreSQL schema that is the store; SQLite has one store per file.
    :param behind_pooler: whether the URL leads to a pooler in transaction mode (PgBouncer), for PostgreSQL.
    :param clock: the host's clock, for SQLite; PostgreSQL uses the server's.
    :param client: the name under which monitoring shows the transactions that run here.
    :param limits: time-outs and sizes of its transactions.
    :param segments: the place of files with bulk entries, a URL or an absolute path; for SQLite by default a folder
        next to the file.
    :raises InvalidArgument: the URL is of another kind, or an option is refused.
    """
    segments = None if segments is None else parse_place(segments)
    parsed = parse_url(url, where="the store's URL", hint=URL_HINT)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        from export_queue.core.store.sqlite.file import StoreFile, open_engine
        from export_queue.core.store.sqlite.opening import open_dialect

        given = {"password": password is not None, "behind_pooler": behind_pooler, "schema": schema != DEFAULT_SCHEMA}
        if unfit := [name for name, is_given in given.items() if is_given]:
            raise InvalidArgument(
                f"{' and '.join(unfit)}: a store in SQLite is one file without passwords, poolers and schemas",
                hint="leave it out, or open a PostgreSQL store",
            )
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            found = _shown(parsed)
            raise InvalidArgument(f"a store needs the path of a file that processes can share, found {found}")
        check_sql_url(parsed, where="the store's URL")
        file = StoreFile(str(Path(parsed.database).absolute()))
        parsed = parsed.set(database=file.path)
        engine, dialect = open_engine(parsed, file), open_dialect(file, clock or _host_clock)
        segments = segments or f"{os.path.normpath(file.path)}.segments"
    elif backend in ("postgresql", "postgres"):
        _check_schema(schema)
        secret = password if password is not None else password_of(parsed)
        try:
            from export_queue.core.store.postgresql import opening

            engine = opening.open_engine(parsed, schema, behind_pooler=behind_pooler, password=secret)
            dialect = opening.open_dialect(engine, schema)
        except (ImportError, NoSuchModuleError) as error:
            raise InvalidArgument(
                f"{_shown(parsed)} needs psycopg, which is not installed",
                hint="pip install 'airflow-provider-export-queue[postgres]'",
            ) from error
    else:
        raise InvalidArgument(f"a store lives in sqlite or postgresql, found {backend!r}")
    return Database(engine, dialect, shown_url=_shown(parsed), client=client, limits=limits, segments=segments)


def _shown(url: sa.URL) -> str:
    return hide_secrets(url.render_as_string(hide_password=True))


def _check_schema(name: str) -> None:
    """Check the name of a schema. The server would cut a longer one, which may then be that of another store."""
    if not 0 < len(name.encode()) <= MOST_SCHEMA_BYTES or any(character in name for character in "'%\x00"):
        raise InvalidArgument(
            f"schema: expected a name of 1 to {MOST_SCHEMA_BYTES} bytes without ' and %, found {name[:100]!r}"
        )
    if name.startswith("pg_"):
        raise InvalidArgument(f"schema: PostgreSQL keeps names that begin with pg_ for itself, found {name!r}")


def _host_clock() -> int:
    return time.time_ns() // 1_000_000
