"""How the command line names stores and sinks.

=========================  =========================================================================================
text                       names
=========================  =========================================================================================
``scheme://…``             a database, server or cluster
``env:NAME``               what the variable contains: one of the others, also a URL with a password
``airflow:ID``, ``ID``     an Airflow connection, where Airflow is installed
``{…}``, a file            a sink: its description as JSON
``module:factory``         a sink of the user's own
=========================  =========================================================================================

The core does not depend on Airflow. The hooks that read connections are imported only when a text names one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import URL

from export_queue.core.callables import check_runs
from export_queue.core.client import Store
from export_queue.core.drivers import check_sql_url, parse_url, password_of, redis_target
from export_queue.core.errors import InvalidArgument, SecretNotFound, SinkConfigurationError
from export_queue.core.references import check_sink_name, import_object, resolve_secret
from export_queue.core.sinks import SinkSpec, is_kind

SINK_PASSWORD = "EXPORT_QUEUE_SINK_PASSWORD"
"""The environment variable of this process that passes on the password of a sink's URL."""
_EXAMPLES = (
    "expected redis://host:6379/0, https://host:9200, opensearch+https://host:9200, postgresql://user@host/db, "
    "mysql://user@host/db or sqlite:///path"
)
_AIRFLOW = "airflow:"
_SEARCH_SCHEMES = {
    "http": ("elasticsearch", "http"),
    "https": ("elasticsearch", "https"),
    "opensearch+http": ("opensearch", "http"),
    "opensearch+https": ("opensearch", "https"),
}
"""By scheme of a URL: the kind of sink, and the scheme of its hosts."""
_KINDS = "a URL with ://, a kind of sink or module:factory"
_CONNECTION = re.compile(r"[A-Za-z0-9_.-]+")
_OPEN_STORE = "export_queue.hooks:open_store_of_connection"
_NAMED_SINK = "export_queue.hooks:sink_of_connection"


def open_named_store(text: str, *, password: str | None, schema: str | None, behind_pooler: bool) -> Store:
    """Open the store that a text names.

    :param password: reference to its password.
    """
    named = _followed(text, "--store")
    conn_id = _connection(named)
    if conn_id is None:
        secret = None if password is None else resolve_secret(password)
        return Store.open(named, password=secret, schema=schema, behind_pooler=behind_pooler)
    if password is not None or schema is not None or behind_pooler:
        raise InvalidArgument(
            f"Airflow connection {conn_id!r} sets its own password, schema and pooler: expected no options for them"
        )
    opening = _import_hook(_OPEN_STORE, text, expected="expected sqlite:///path or postgresql://user@host/db")
    return cast(Store, opening(conn_id))


@contextlib.contextmanager
def named_sink(
    text: str, *, options: Sequence[str] = (), secrets: Sequence[str] = (), name: str | None = None
) -> Iterator[SinkSpec]:
    """Describe the sink that a text names; its secrets can be resolved during the block.

    :param options: ``name=value``, options that the text does not set; a value that is not JSON is text.
    :param secrets: ``name=reference``.
    :param name: name to which a queue is bound.
    :raises InvalidArgument: the text names no sink, or the name is not valid.
    :raises SinkConfigurationError: the description does not fit the sink.
    """
    if name is not None:
        check_sink_name(name)
    chosen = options_of(options)
    references = dict(map(_pair, secrets))
    named = _followed(text, "--sink")
    if (conn_id := _connection(named)) is not None:
        describe = _import_hook(_NAMED_SINK, text, expected="expected a URL, a file SINK.json or module:factory")
        if references:
            raise InvalidArgument(f"secrets belong in connection {conn_id!r} of Airflow, found --sink-secret")
        with describe(conn_id, chosen) as spec:
            yield spec if name is None else SinkSpec(spec.kind, spec.options, spec.secrets, name=name)
        return
    found, password = _description(named, "--sink" if named == text else text)
    if doubled := sorted({*found.get("options", {}), *found.get("secrets", {})} & {*chosen, *references}):
        raise InvalidArgument(f"{', '.join(doubled)} of the sink: set twice, by its name and by an option")
    if chosen and found.get("kind") == "composite":
        raise InvalidArgument("options of a composite sink belong in its parts, found --sink-option")
    described = {
        **found,
        "options": {**(found.get("options") or {}), **chosen},
        "secrets": {**(found.get("secrets") or {}), **references},
    }
    if name is not None:
        described["name"] = name
    with _variable(SINK_PASSWORD, password):
        if password is not None and "password" not in described["secrets"]:
            described["secrets"]["password"] = f"env:{SINK_PASSWORD}"
        yield SinkSpec.from_dict(described)


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """Read options of a sink: ``name=value``; a value that is not JSON is text."""
    return {option: _value(value) for option, value in map(_pair, texts)}


def database_of(text: str) -> URL:
    """Return the URL of the SQL database that a text names."""
    url = parse_url(_followed(text, "--database"), where="--database", hint="expected postgresql://user@host/database")
    check_sql_url(url, where="--database")
    return url


def _followed(text: str, option: str) -> str:
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    try:
        return os.environ[name]
    except KeyError:
        raise SecretNotFound(f"{option} {text}: the environment has no variable {name}") from None


def _connection(text: str) -> str | None:
    """Return the connection's id if a text names an Airflow connection."""
    if text.startswith(_AIRFLOW) and "://" not in text:
        return text.removeprefix(_AIRFLOW)
    return text if _CONNECTION.fullmatch(text) and not _is_file(text) else None


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).is_file()


def _import_hook(path: str, text: str, *, expected: str) -> Callable[..., Any]:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Airflow logs to the output that it finds when imported
            found = import_object(path, error=InvalidArgument)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{text.removeprefix(_AIRFLOW)!r} is not a URL, so it would name an Airflow connection, "
            f"but Airflow cannot be imported here: {error.__cause__}",
            hint=f"{expected}; or install Airflow: pip install 'airflow-provider-export-queue[airflow]'",
        ) from None
    return cast(Callable[..., Any], found)


def _description(text: str, where: str) -> tuple[dict[str, Any], str | None]:
    """Return the description of a sink as a user would write it, and the password from its URL.

    :param where: named in errors instead of the text, which may contain a password.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text, where), None
    if _is_file(text):
        return read_description(Path(text)), None
    if "://" in text:
        return _from_url(text)
    search_current_folder()
    _require_kind(text, where)
    return {"kind": text}, None


def _require_kind(kind: object, where: str) -> None:
    if not is_kind(kind):
        # not repeated: it may be a URL without "://", or come from a file of secrets
        raise SinkConfigurationError(
            f"{where}: expected {_KINDS}, found text of {len(str(kind))} characters that is none of these"
        )


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of a sink from a file: JSON with ``kind``, optionally ``options``, ``secrets``, ``name``.

    :raises InvalidArgument: the file cannot be read or contains no JSON; the message does not show its content.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    search_current_folder()
    return _read_json(text, str(path))


def _read_json(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidArgument(f"{where}: expected JSON, the description of a sink") from None
    if isinstance(found, dict) and "kind" in found:
        _require_kind(found["kind"], f"{where}: kind")
    try:
        SinkSpec.from_dict(found)
    except SinkConfigurationError as error:
        raise SinkConfigurationError(f"{where}: {error.message}", hint=error.hint) from None
    return dict(found)


def _from_url(text: str) -> tuple[dict[str, Any], str | None]:
    scheme = text.partition("://")[0]
    if scheme in ("redis", "rediss", *_SEARCH_SCHEMES):
        return _from_server_url(text)
    if scheme == "opensearch":
        raise InvalidArgument(
            "the URL of the sink: expected opensearch+https://host:port, or opensearch+http://host:port without TLS"
        )
    url = parse_url(text, where="the URL of the sink", hint=_EXAMPLES)
    check_sql_url(url, where="the URL of the sink")
    bare = url._replace(password=None).difference_update_query(["password"])  # set() would keep it
    return {"kind": "sql", "options": {"url": bare.render_as_string(hide_password=False)}}, password_of(url)


def _from_server_url(text: str) -> tuple[dict[str, Any], str | None]:
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        raise InvalidArgument("the URL of the sink cannot be read: expected scheme://host:port") from None
    if not host or url.fragment or (url.query and url.scheme in _SEARCH_SCHEMES):
        raise InvalidArgument("the URL of the sink: expected scheme://user@host:port; options go with --sink-option")
    options: dict[str, Any] = {} if url.username in (None, "") else {"username": unquote(url.username or "")}
    password = None if not url.password else unquote(url.password)
    if url.scheme in _SEARCH_SCHEMES:
        kind, scheme = _SEARCH_SCHEMES[url.scheme]
        literal = f"[{host}]" if ":" in host else host
        options["hosts"] = f"{scheme}://{literal}{f':{port}' if port else ''}{url.path.rstrip('/')}"
        return {"kind": kind, "options": options}, password
    try:
        pairs = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError:
        pairs = [("", "")]
    given = dict(pairs)
    if len(given) < len(pairs) or not all(given.values()):
        raise InvalidArgument("the URL of the sink: expected one value for each option, found none or several")
    given |= {"ssl": "true"} if url.scheme == "rediss" else {}
    options |= {"host": host, "port": port or 6379}
    return {
        "kind": "redis",
        "options": options | redis_target(given, path=url.path, where="the URL of the sink"),
    }, password


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidArgument("an option or secret of the sink: expected name=value, found no name and '='")
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextlib.contextmanager
def _variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable during a block; None leaves it unchanged."""
    if value is None:
        yield
        return
    before = {key: os.environ[key] for key in (name,) if key in os.environ}
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def search_current_folder() -> Path:
    """Let imports find modules in the current folder, and return the folder."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def load_function(target: str) -> Callable[..., Any]:
    """Import ``module:function``, also from the current folder."""
    here = search_current_folder()
    hint = f"modules are searched for among the installed packages and in {here}"
    return check_runs(import_object(target, error=InvalidArgument, hint=hint), target)
