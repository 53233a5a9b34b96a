"""What a sink writes to, as the tools of data lineage name it (pure). No name contains a user or a password.

Source: the naming conventions of OpenLineage, https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from export_queue.core.drivers import parse_url
from export_queue.core.sinks.naming import COLLECTION, parts_of

if TYPE_CHECKING:
    from sqlalchemy import URL

    from export_queue.core.sinks.spec import SinkSpec

TEMPLATES: Mapping[str, tuple[str, str]] = {
    "elasticsearch": ("index", "$collection"),
    "opensearch": ("index", "$collection"),
    "redis": ("key", "$collection:$id"),
    "sql": ("table", "$collection"),
}
"""By kind of sink: the option with the template of names, and its default."""
_ANY = "*"
_PORTS = {"postgresql": 5432, "mysql": 3306}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table, an index, a pattern of keys, or a file.

    :param namespace: the system that has it, such as ``postgres://db.example:5432``.
    :param path: its name there, from the outside in: ``("exports", "public", "orders")``.
    """

    namespace: str
    path: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name in the system."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class SqlNames:
    """How a database names its tables.

    :param namespace: the system.
    :param before: what a bare name of a table stands in: database and schema.
    :param dialect: the name of its SQL in OpenLineage.
    """

    namespace: str
    before: tuple[str, ...]
    dialect: str

    def table(self, *parts: str | None) -> Dataset:
        """Name a table.

        :param parts: its name; before it, perhaps its schema and its database. None counts as not given.
        """
        given = tuple(part for part in parts if part)
        return Dataset(self.namespace, self.before[: max(0, len(self.before) + 1 - len(given))] + given)


def sql_names(url: str) -> SqlNames:
    """Return how the database of a URL names its tables."""
    found = parse_url(url, where="the URL of a database")
    backend = found.get_backend_name()
    if backend == "sqlite":
        return SqlNames(f"sqlite://{found.database}", (), "sqlite")
    place = f"{_host(found)}:{found.port or _one(found.query.get('port')) or _PORTS.get(backend, 0)}"
    if backend == "mysql":
        return SqlNames(f"mysql://{place}", (found.database or "",), "mysql")
    return SqlNames(
        f"postgres://{place}", (found.database or _one(found.query.get("dbname")) or "", "public"), "postgres"
    )


def datasets_of(sink: SinkSpec, collection: str | None) -> list[Dataset]:
    """Name what a sink writes to; nothing for sinks of a kind that is not built in.

    :param sink: the sink, or several as one, with the options that the reader is bound to.
    :param collection: the collection of all records; None if the exporter chooses it. A ``*`` then stands for it.
    """
    return [_dataset(leaf, collection) for leaf in sink.leaves() if leaf.kind in TEMPLATES]


def _dataset(sink: SinkSpec, collection: str | None) -> Dataset:
    option, default = TEMPLATES[sink.kind]
    template, options = sink.options.get(option) or default, sink.options
    if sink.kind == "sql":
        from export_queue.core.sinks.sql.tables import split_schema

        schema, table = split_schema(template)
        return sql_names(options["url"]).table(schema, _filled(table, collection))
    name = _filled(template, collection)
    if sink.kind == "redis":
        place = f"{options.get('host') or 'localhost'}:{options.get('port') or 6379}"
        return Dataset(f"redis://{place}", (f"{options.get('db') or 0}/{name}",))
    return Dataset(f"{sink.kind}://{_node(options.get('hosts'))}", (name,))


def _filled(template: str, collection: str | None) -> str:
    values = {COLLECTION: collection or _ANY, "": ""}
    return "".join(text + values.get(field, _ANY) for text, field in parts_of(template))


def _node(hosts: Any) -> str:
    """Return host and port of the first node."""
    first = hosts if isinstance(hosts, str) else next(iter(hosts or ()), "http://localhost:9200")
    url = urlsplit(first)
    return f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"


def _host(url: URL) -> str:
    """Return the first host; a folder of sockets is this machine."""
    found = url.host or (_one(url.query.get("host")) or "").partition(",")[0]
    return "localhost" if not found or found.startswith("/") else found


def _one(value: Any) -> str | None:
    """Return the first value of an option of a URL."""
    return next(iter(value), None) if isinstance(value, tuple) else value
