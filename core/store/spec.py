"""A description of a store that may travel: on command lines, in XCom, to Spark's executors."""

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
from export_queue.core.store.opening import URL_HINT
from export_queue.core.store.place import parse_place
from export_queue.core.store.seams import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Where a store is; it holds no secret.

    :param url: ``sqlite:////path`` or ``postgresql+psycopg://user@host/database``, without a password.
    :param schema: the PostgreSQL schema that is the store.
    :param secret: a reference to the password: ``env:NAME``, ``file:/PATH`` or ``module:callable``; it is followed
        again at each new connection, so that the password may change.
    :param behind_pooler: whether the URL leads to a pooler in transaction mode, such as PgBouncer's.
    :param segments: where files with bulk entries are, for all that write and drain: ``s3://bucket/folder`` or the
        absolute path of a shared folder; for SQLite by default a folder beside the file.
    :raises InvalidArgument: a URL holds a password, or an option that its driver does not take, or the reference is
        none.
    """

    url: str
    schema: str = "export_queue"
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
        """Tell whether the store is a file that only this machine sees."""
        return self.url.startswith("sqlite")

    def open(self, *, clock: Clock | None = None, client: str | None = None, limits: Limits | None = None) -> Database:
        """Prepare connections; the secret is looked up when one is opened.

        See :meth:`Database.open` for the parameters.
        """
        return Database.open(
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
        """Return the description as JSON text; the path of a file is absolute from now on."""
        url = sa.make_url(self.url) if self.is_sqlite else None
        if url is None or not url.database:
            return json.dumps(asdict(self), sort_keys=True)
        shown = url.set(database=str(Path(url.database).absolute())).render_as_string()
        return json.dumps(asdict(self) | {"url": shown}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StoreSpec:
        """Read the text that :meth:`to_json` wrote.

        :raises InvalidArgument: the text is not such a description.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"expected the description of a store as JSON: {error}") from None
