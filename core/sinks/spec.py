"""The description of a sink as data: kind, options, and references to secrets. Other processes get it as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from export_queue.core.arguments import decoded
from export_queue.core.callables import check_runs, returned
from export_queue.core.drivers import check_redis_host, check_sql_url, client_arguments, parse_url, redis_tls
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.references import check_sink_name, has_password, import_object, is_reference, resolve_secret
from export_queue.core.sinks.composite import CompositeSink
from export_queue.core.sinks.guards import FencedSink
from export_queue.core.sinks.protocol import BoundSink, Sink, check_sink

_BUILT_IN = {
    "elasticsearch": "export_queue.core.sinks.elasticsearch:ElasticsearchSink",
    "opensearch": "export_queue.core.sinks.elasticsearch:OpenSearchSink",
    "memory": "export_queue.core.sinks.memory:MemorySink",
    "redis": "export_queue.core.sinks.redis:RedisSink",
    "sql": "export_queue.core.sinks.sql:SqlSink",
}
_COMPOSITE = "composite"
_SEARCH = ("elasticsearch", "opensearch")
_FIELDS = ("kind", "options", "secrets", "name")
_LOOKED_UP_AGAIN = {
    "elasticsearch": ("password", "api_key"),
    **dict.fromkeys(("opensearch", "redis", "sql"), ("password",)),
}
"""Secrets that may change while a sink is open."""
_OWN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_SECRET_NAME = re.compile(r"passw|passphrase|pwd|secret|token|credential|api_?key|private_?key", re.IGNORECASE)
_TYPE_NAMES: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Sequence: "a list of texts",
    Mapping: "names and values",
}


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """The description of a sink. It contains no secret.

    :param kind: ``elasticsearch``, ``memory``, ``opensearch``, ``redis``, ``sql``, ``composite``, or
        ``module:factory`` for a sink of your own.
    :param options: arguments of the sink: JSON values without passwords. A composite sink has one option ``parts``, a
        list of descriptions, each with its own secrets.
    :param secrets: further arguments, as references: ``env:NAME``, ``file:/PATH`` or ``module:callable``.
    :param name: the name to which a queue is bound; by default the kind and the target.
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        known = sorted([*_BUILT_IN, _COMPOSITE])
        if not is_kind(self.kind):
            # what follows a ":" may be a password: of a URL without "://"
            before, colon, _ = str(self.kind).partition(":")
            raise SinkConfigurationError(
                f"unknown kind of sink {before + (':…' if colon else '')!r}: "
                f"expected {', '.join(known)} or module:factory"
            )
        for field_name in ("options", "secrets"):
            if not isinstance(getattr(self, field_name), Mapping):
                raise SinkConfigurationError(f"{field_name} of sink {self.kind}: expected names and values")
        try:
            options = json.loads(json.dumps(dict(self.options)))
        except (TypeError, ValueError) as error:
            raise SinkConfigurationError(f"options of sink {self.kind} are not JSON: {error}") from None
        if self.kind == _COMPOSITE:
            options = {"parts": [_plain(part) for part in _parts(options, self.secrets)]}
        else:
            _refuse_secrets(options, self.kind)
            _refuse_unkept(options, self.kind)
        for option, reference in self.secrets.items():
            if not is_reference(reference):
                raise SinkConfigurationError(
                    f"secret {option!r} of sink {self.kind} is not a reference: "
                    "expected env:NAME, file:/PATH or module:callable (what was found is not shown)"
                )
            if option in options:
                raise SinkConfigurationError(f"{option!r} of sink {self.kind} is given as an option and as a secret")
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "secrets", dict(self.secrets))
        if self.name == "":
            object.__setattr__(self, "name", _default_name(self))
        try:
            check_sink_name(self.name)
        except InvalidArgument as error:
            raise SinkConfigurationError(f"sink {self.kind}: {error.message}") from None

    @classmethod
    def from_dict(cls, found: object) -> SinkSpec:
        """Read a description with ``kind``, and optionally ``options``, ``secrets`` and ``name``.

        :raises SinkConfigurationError: it is something else, which the error does not show, or is not valid.
        """
        if not isinstance(found, Mapping) or "kind" not in found or not found.keys() <= set(_FIELDS):
            raise SinkConfigurationError(
                'the description of a sink: expected JSON such as {"kind": "redis", "options": {…}, '
                '"secrets": {"password": "env:NAME"}}, and perhaps a name'
            )
        options, secrets = found.get("options") or {}, found.get("secrets") or {}
        name = found.get("name")
        return cls(found["kind"], options, secrets, name="" if name is None else name)

    def leaves(self) -> tuple[SinkSpec, ...]:
        """Return the sinks that are written to: the parts of a composite sink, or this sink."""
        if self.kind != _COMPOSITE:
            return (self,)
        return tuple(leaf for part in _parts(self.options, {}) for leaf in part.leaves())

    def to_json(self) -> str:
        """Return the description as JSON text, without secrets."""
        return json.dumps(_plain(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SinkSpec:
        """Read the text that :meth:`to_json` returned.

        :raises InvalidArgument: the text is not JSON.
        :raises SinkConfigurationError: the JSON does not describe a sink.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"expected the description of a sink as JSON: {error}") from None
        return cls.from_dict(found)

    def filled_in(self, binding: Mapping[str, Any]) -> SinkSpec:
        """Return this description with the missing options that decide which record is written.

        :param binding: the reader's binding, as :func:`binding_of` returned it.
        """
        if binding.get("kind", self.kind) != self.kind:
            return self
        if self.kind == _COMPOSITE:
            parts = [_plain(part.filled_in(binding["parts"].get(part.name, {}))) for part in _parts(self.options, {})]
            return SinkSpec(self.kind, {"parts": parts}, name=self.name)
        taken = self._parameters()
        given = {"kind", *self.secrets, *(name for name, value in self.options.items() if value is not None)}
        missing = {
            name: value for name, value in binding.items() if name not in given and (taken is None or name in taken)
        }
        return SinkSpec(self.kind, {**self.options, **missing}, self.secrets, name=self.name) if missing else self

    def bound_to(self, binding: Mapping[str, Any]) -> SinkSpec:
        """Return this description with the options of a binding, in place of those that it has.

        :param binding: the options that decide which record is written, by name; other names are ignored.
        :raises SinkConfigurationError: the binding is that of another kind of sink.
        """
        if binding.get("kind", self.kind) != self.kind:
            raise SinkConfigurationError(f"expected a sink of the kind {binding['kind']}, found {self.kind}")
        taken = self._parameters()
        options = {
            name: value for name, value in binding.items() if name != "kind" and (taken is None or name in taken)
        }
        return SinkSpec(self.kind, {**self.options, **options}, self.secrets, name=self.name)

    def _parameters(self) -> Collection[str] | None:
        parameters = inspect.signature(_factory(self)).parameters
        return None if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) else parameters

    def open(self) -> Sink:
        """Create the sink.

        A ``password``, and an ``api_key`` of Elasticsearch, is looked up again for each new connection, so that it may
        change while the sink is open. Other secrets are looked up once.

        :raises SinkConfigurationError: the sink does not accept these options, or a package is missing.
        :raises SecretNotFound: a reference cannot be resolved.
        """
        if self.kind == _COMPOSITE:
            return _compose([(part.name, part.open) for part in _parts(self.options, {})])
        secrets: dict[str, str | Callable[[], str]] = {}
        for option, reference in self.secrets.items():
            # resolved at once, so that a wrong reference is reported before a connection is opened
            secrets[option] = resolve_secret(reference)
            if option in _LOOKED_UP_AGAIN.get(self.kind, ()):
                secrets[option] = partial(resolve_secret, reference)
        return _build(self, secrets)


def binding_of(sink: Sink | FencedSink) -> dict[str, Any]:
    """Return the options of an open sink that decide which record is written; see :class:`BoundSink`."""
    try:
        return dict(json.loads(json.dumps(sink.binding()))) if isinstance(sink, BoundSink) else {}
    except (TypeError, ValueError) as error:
        raise SinkConfigurationError(
            f"{type(sink).__name__}.binding(): expected names and JSON values: {error}"
        ) from None


def is_kind(kind: object) -> bool:
    """Return whether a kind is valid: a built-in one, or ``module:factory``."""
    return isinstance(kind, str) and (kind in (*_BUILT_IN, _COMPOSITE) or _OWN.fullmatch(kind) is not None)


@contextlib.contextmanager
def opened_sink(sink: SinkSpec | Sink | FencedSink) -> Iterator[Sink | FencedSink]:
    """Open a described sink, and close it at the end. An open sink stays open."""
    if not isinstance(sink, SinkSpec):
        check_sink(sink)
        yield sink
        return
    opened = sink.open()
    try:
        yield opened
    finally:
        opened.close()


def _parts(options: Mapping[str, Any], secrets: Mapping[str, str]) -> list[SinkSpec]:
    parts = options.get("parts")
    if list(options) != ["parts"] or not isinstance(parts, list) or not parts or secrets:
        raise SinkConfigurationError(
            "a composite sink has one option, parts: a list of sinks, each with its own secrets"
        )
    found = []
    for part in parts:
        try:
            spec = SinkSpec.from_dict(part)
        except SinkConfigurationError as error:
            raise SinkConfigurationError(f"a part of a composite sink: {error.message}", hint=error.hint) from None
        if spec.options.get("guard") == "fence":
            # it accepts whole batches by their claim: a part that lags behind would apply all repeated deliveries
            raise SinkConfigurationError(f"part {spec.name!r} of a composite sink needs the guard seq, found fence")
        found.append(spec)
    names = [spec.name for spec in found]
    if len(set(names)) < len(names):
        raise SinkConfigurationError(
            f"the parts of a composite sink have different names, found {names}",
            hint='give each part a name: {"kind": …, "options": {…}, "name": "cache"}',
        )
    return found


def _plain(spec: SinkSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in _FIELDS}


def _compose(parts: Sequence[tuple[str, Callable[[], Sink]]]) -> Sink:
    """Open all parts, or none."""
    with contextlib.ExitStack() as opened:
        sinks: list[tuple[str, Sink]] = []
        for name, open_part in parts:
            sink = open_part()
            opened.callback(sink.close)
            sinks.append((name, sink))
        opened.pop_all()
    return CompositeSink(sinks)


def _factory(spec: SinkSpec) -> Callable[..., Any]:
    extra = f"pip install 'airflow-provider-export-queue[{spec.kind}]'"
    found = import_object(
        _BUILT_IN.get(spec.kind, spec.kind),
        error=SinkConfigurationError,
        hint=extra if spec.kind in _BUILT_IN else "name a module that this process can import",
    )
    return check_runs(found, f"sink {spec.kind}", error=SinkConfigurationError)


def _build(spec: SinkSpec, secrets: Mapping[str, str | Callable[[], str]]) -> Sink:
    factory = _factory(spec)
    arguments = {**spec.options, **secrets}
    signature = inspect.signature(factory)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise SinkConfigurationError(f"sink {spec.kind}: {error}; it takes: {known}") from None
    if spec.kind in _BUILT_IN:
        arguments = {**read_options(factory, spec.options, kind=spec.kind), **secrets}
    sink = returned(factory(**arguments), f"sink {spec.kind}", error=SinkConfigurationError)
    is_fenced = getattr(getattr(sink, "capabilities", None), "fenced", False)
    parts = ("capabilities", "admit", *(("claim", "under") if is_fenced else ("apply",)), "close")
    missing = [part for part in parts if not hasattr(sink, part)]
    if missing:
        raise SinkConfigurationError(f"{spec.kind} returned {type(sink).__name__}, which has no {', '.join(missing)}")
    check_sink(sink)
    return cast(Sink, sink)


def _refuse_secrets(value: Any, kind: str, name: str = "") -> None:
    """Refuse options that look like passwords, because options are stored and shown."""
    reason = ""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _SECRET_NAME.search(key):
                name, reason = key, "its name says that it is a secret"
                break
            _refuse_secrets(inner, kind, key)
    elif isinstance(value, list):
        for inner in value:
            _refuse_secrets(inner, kind, name)
    elif isinstance(value, str) and has_password(value):
        reason = "it holds a password"
    if reason:
        raise SinkConfigurationError(
            f"option {name!r} of sink {kind} is refused: {reason}",
            hint=f"give it as a secret: secrets={{{'password' if name == 'url' else name!r}: 'env:NAME'}}",
        )


def _refuse_unkept(options: Mapping[str, Any], kind: str) -> None:
    """Refuse options that the driver would ignore, before anything is sent to Spark."""
    url, where = options.get("url"), f"option 'url' of sink {kind}"
    if kind == "sql" and isinstance(url, str):
        check_sql_url(
            parse_url(url, where=where, error=SinkConfigurationError), where=where, error=SinkConfigurationError
        )
    hosts = options.get("hosts")
    if kind in _SEARCH and isinstance(options.get("client_options"), dict):
        client_arguments(options["client_options"], [hosts] if isinstance(hosts, str) else hosts or [], kind=kind)
    host = options.get("host")
    if kind == "redis" and isinstance(host, str):
        check_redis_host(host, where="sink redis", error=SinkConfigurationError)
    tls, where = options.get("ssl_options"), f"option 'ssl_options' of sink {kind}"
    if kind == "redis" and isinstance(tls, dict):
        redis_tls(tls, ssl=bool(options.get("ssl")), where=where, error=SinkConfigurationError)


def _default_name(spec: SinkSpec) -> str:
    options = spec.options
    if spec.kind == "memory":
        return f"memory:{options.get('name') or 'unnamed'}"
    if spec.kind == _COMPOSITE:
        return " + ".join(part["name"] for part in options["parts"])
    if spec.kind == "redis":
        host = options.get("host") or spec.secrets.get("host", "localhost")
        return f"redis://{host}:{options.get('port', 6379)}/{options.get('db', 0)}"
    if spec.kind in _SEARCH:
        hosts = options.get("hosts") or "http://localhost:9200"
        return ",".join(map(str, hosts)) if isinstance(hosts, list) else str(hosts)
    if spec.kind == "sql":
        return str(options.get("url") or spec.secrets.get("url", "sql"))
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    return f"{spec.kind}#{digest}" if options else spec.kind


def read_options(factory: Callable[..., Any], options: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """Return options in the types that the sink's constructor declares; None is left out.

    An Airflow template may have turned a number or a list into text, or a text into a number.

    :raises SinkConfigurationError: an option has another type.
    """
    hints = get_type_hints(factory.__init__)
    found = {name: _read(name, value, hints[name], kind) for name, value in options.items()}
    return {name: value for name, value in found.items() if value is not None}


def _read(name: str, value: Any, hint: Any, kind: str) -> Any:
    read = decoded(value)
    if read is None and value != "":
        return None
    # a column named 12 stays text, and a list of columns is not a name
    read_first = isinstance(read, str | list | dict)
    for one in (read, value) if read_first else (value, read):
        if _fits(one, hint):
            return one
    if type(value) is int and _fits(str(value), hint):
        return str(value)
    raise SinkConfigurationError(f"option {name!r} of sink {kind}: expected {_expected(hint)}, found {value!r:.100}")


def _fits(value: object, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _expected(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        named = [one for one in get_args(hint) if one is not NoneType and get_origin(one) is not Callable]
        return ", or ".join(map(_expected, named))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin is Mapping and get_args(hint)[1] is str:
        return "names and texts"
    return _TYPE_NAMES[origin or hint]
