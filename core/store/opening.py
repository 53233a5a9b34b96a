"""From the URL of a store to its engine and its seams."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchModuleError

from export_queue.core.drivers import check_sql_url, parse_url, password_of
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import hide_secrets
from export_queue.core.store.seams import Clock, Dialect

DEFAULT_SCHEMA = "export_queue"
MOST_SCHEMA_BYTES = 63
URL_HINT = "expected postgresql+psycopg://user@host:port/database or sqlite:////absolute/path"


@dataclass(frozen=True, slots=True)
class Opened:
    """A database under a store; nothing has been sent to it yet."""

    engine: sa.Engine
    """In autocommit mode."""
    dialect: Dialect
    shown_url: str
    """Without secrets."""
    segments: str | None = None
    """The place of files with bulk entries where none is given."""


def open_database(
    url: str,
    *,
    password: str | Callable[[], str] | None,
    schema: str,
    behind_pooler: bool,
    clock: Clock | None,
) -> Opened:
    """Make the engine and the seams of a store; :meth:`Database.open` says what the arguments are.

    :raises InvalidArgument: the URL is of another kind, or an option is refused.
    """
    parsed = parse_url(url, where="the store's URL", hint=URL_HINT)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        given = {"password": password is not None, "behind_pooler": behind_pooler, "schema": schema != DEFAULT_SCHEMA}
        if unfit := [name for name, is_given in given.items() if is_given]:
            raise InvalidArgument(
                f"{' and '.join(unfit)}: a store in SQLite is one file without passwords, poolers and schemas",
                hint="leave it out, or open a PostgreSQL store",
            )
        return _open_file(parsed, clock or _host_clock)
    if backend in ("postgresql", "postgres"):
        _check_schema(schema)
        secret = password if password is not None else password_of(parsed)
        try:
            return _open_server(parsed, schema, behind_pooler=behind_pooler, password=secret)
        except (ImportError, NoSuchModuleError) as error:
            raise InvalidArgument(
                f"{_shown(parsed)} needs psycopg, which is not installed",
                hint="pip install 'airflow-provider-export-queue[postgres]'",
            ) from error
    raise InvalidArgument(f"a store lives in sqlite or postgresql, found {backend!r}")


def _open_file(url: sa.URL, clock: Clock) -> Opened:
    from export_queue.core.store.sqlite.file import StoreFile, open_engine
    from export_queue.core.store.sqlite.opening import open_dialect

    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise InvalidArgument(f"a store needs the path of a file that processes can share, found {_shown(url)}")
    check_sql_url(url, where="the store's URL")
    file = StoreFile(str(Path(url.database).absolute()))
    url = url.set(database=file.path)
    return Opened(
        open_engine(url, file), open_dialect(file, clock), _shown(url), f"{os.path.normpath(file.path)}.segments"
    )


def _open_server(url: sa.URL, schema: str, *, behind_pooler: bool, password: str | Callable[[], str] | None) -> Opened:
    from export_queue.core.store.postgresql.opening import open_dialect, open_engine

    engine = open_engine(url, schema, behind_pooler=behind_pooler, password=password)
    return Opened(engine, open_dialect(engine, schema), _shown(url))


def _shown(url: sa.URL) -> str:
    return hide_secrets(url.render_as_string(hide_password=True))


def _check_schema(name: str) -> None:
    """Check the name of a schema: the server would cut a longer one, which may then be that of another store.

    :raises InvalidArgument: the message says what is allowed.
    """
    if not 0 < len(name.encode()) <= MOST_SCHEMA_BYTES or any(character in name for character in "'%\x00"):
        raise InvalidArgument(
            f"schema: expected a name of 1 to {MOST_SCHEMA_BYTES} bytes without ' and %, found {name[:100]!r}"
        )
    if name.startswith("pg_"):
        raise InvalidArgument(f"schema: PostgreSQL keeps names that begin with pg_ for itself, found {name!r}")


def _host_clock() -> int:
    return time.time_ns() // 1_000_000
