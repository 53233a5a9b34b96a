"""The serialisable description of a store, for command lines, XCom and Spark's executors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from export_queue.core.drivers import check_sql_url, parse_url
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import has_password, is_reference, resolve_secret
from export_queue.core.store.database import Database
from export_queue.core.store.limits import Limits
from export_queue.core.store.opening import DEFAULT_SCHEMA, URL_HINT, open_database
from export_queue.core.store.place import parse_place
from export_queue.core.store.seams import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """The location of a store, without secrets.

    :param url: ``sqlite:////path`` or ``postgresql+psycopg://user@host/database``, without a password.
    :param schema: the PostgreSQL schema that is the store.
    :param secret: a reference to the password: ``env:NAME``, ``file:/PATH`` or ``module:callable``. It is resolved for
        each new connection, so the password may change.
    :param behind_pooler: whether the URL leads to a pooler in transaction mode, such as PgBouncer's.
    :param segments: the place of files with bulk entries, for all writers and drains: ``s3://bucket/folder`` or the
        absolute path of a shared folder; for SQLite by default a folder next to the file.
    :raises InvalidArgument: the URL holds a password, an option is refused, or the reference is malformed.
    """

    url: str
    schema: str = DEFAULT_SCHEMA
    secret: str | None = None
    behind_pooler: bool = False
    segments: str | None = None

    def __post_init__(self) -> None:
        if has_password(self.url):
            raise InvalidArgument(
                "the store's URL holds a password, which a command line would show",
                hint="leave it out, and name it: secret='env:NAME', 'file:/PATH' or 'module:callable'",
            )
        check_sql_url(parse_url(self.url, where="the store's URL", hint=URL_HINT), where="the store's URL")
        if self.segments is not None:
            parse_place(self.segments)
        if self.secret is not None and not is_reference(self.secret):
            raise InvalidArgument("the store's secret: expected env:NAME, file:/PATH or module:callable")

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is a file that only this machine sees."""
        return self.url.startswith("sqlite")

    def open(self, *, clock: Clock | None = None, client: str | None = None, limits: Limits | None = None) -> Database:
        """Prepare connections, as :func:`open_database` does; the secret is looked up for each new one."""
        return open_database(
            self.url,
            password=None if self.secret is None else partial(resolve_secret, self.secret),
            schema=self.schema,
            behind_pooler=self.behind_pooler,
            clock=clock,
            client=client,
            limits=limits,
            segments=self.segments,
        )

    def to_json(self) -> str:
        """Return the description as JSON text, with the absolute path of a file."""
        url = sa.make_url(self.url) if self.is_sqlite else None
        if url is None or not url.database:
            return json.dumps(asdict(self), sort_keys=True)
        shown = url.set(database=str(Path(url.database).absolute())).render_as_string()
        return json.dumps(asdict(self) | {"url": shown}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StoreSpec:
        """Read the result of :meth:`to_json`.

        :raises InvalidArgument: the text is something else.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the description of a store as JSON: {error}") from None
