"""What a sink is, as data: a kind, options, and references to secrets, that travel to other processes as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from export_queue.core.callables import check_runs, returned
from export_queue.core.drivers import check_sql_url, client_arguments, parse_url, redis_tls
from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.references import check_sink_name, has_password, import_object, is_reference, resolve_secret
from export_queue.core.sinks.composite import CompositeSink
from export_queue.core.sinks.guards import FencedSink
from export_queue.core.sinks.option_types import read_options
from export_queue.core.sinks.protocol import BoundSink, Sink, check_sink

_BUILT_IN = {
    "elasticsearch": "export_queue.core.sinks.elasticsearch:ElasticsearchSink",
    "memory": "export_queue.core.sinks.memory:MemorySink",
    "redis": "export_queue.core.sinks.redis:RedisSink",
    "sql": "export_queue.core.sinks.sql:SqlSink",
}
_COMPOSITE = "composite"
_FIELDS = ("kind", "options", "secrets", "name")
_LOOKED_UP_AGAIN = {"elasticsearch": ("password", "api_key"), "redis": ("password",), "sql": ("password",)}
"""Secrets that may change while a sink is open."""
_OWN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_SECRET_NAME = re.compile(r"passw|passphrase|pwd|secret|token|credential|api_?key|private_?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A description of a sink that holds no secret.

    :param kind: ``elasticsearch``, ``memory``, ``redis``, ``sql``, ``composite``, or ``module:factory`` for a sink
        of your own.
    :param options: arguments of the sink; JSON values, no passwords. Of a composite one ``parts``, a list of
        descriptions, each with secrets of its own.
    :param secrets: further arguments, as references: ``env:NAME``, ``file:/PATH`` or ``module:callable``.
    :param name: what a queue is bound to; by default the kind and its target.
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
        """Read a description as people write it: ``kind``, and perhaps ``options``, ``secrets`` and ``name``.

        :raises SinkConfigurationError: something else stands there, which is not shown, or there is no such sink.
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
        """Return the sinks that are written to: the parts of a composite one, else this one."""
        if self.kind != _COMPOSITE:
            return (self,)
        return tuple(leaf for part in _parts(self.options, {}) for leaf in part.leaves())

    def to_json(self) -> str:
        """Return the description as JSON text; it holds no secret."""
        return json.dumps(_plain(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SinkSpec:
        """Read the text that :meth:`to_json` wrote.

        :raises InvalidArgument: the text is no JSON.
        :raises SinkConfigurationError: the JSON describes no sink.
        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"expected the description of a sink as JSON: {error}") from None
        return cls.from_dict(found)

    def filled_in(self, binding: Mapping[str, Any]) -> SinkSpec:
        """Return this description with the options that it leaves out and that decide which record is written.

        :param binding: what a reader is bound to, as :func:`binding_of` returned it.
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

    def _parameters(self) -> Collection[str] | None:
        """Name the options that the sink takes; None for any."""
        parameters = inspect.signature(_factory(self)).parameters
        return None if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) else parameters

    def open(self) -> Sink:
        """Build the sink.

        A ``password``, and an ``api_key`` of Elasticsearch, is looked up again at each new connection, so that
        it may change while the sink is open; other secrets are looked up once.

        :raises SinkConfigurationError: the sink does not take these options, or a package is missing.
        :raises SecretNotFound: a reference leads nowhere.
        """
        if self.kind == _COMPOSITE:
            return _compose([(part.name, part.open) for part in _parts(self.options, {})])
        secrets: dict[str, str | Callable[[], str]] = {}
        for option, reference in self.secrets.items():
            # at once, so that a reference that leads nowhere is known before a connection is opened
            secrets[option] = resolve_secret(reference)
            if option in _LOOKED_UP_AGAIN.get(self.kind, ()):
                secrets[option] = partial(resolve_secret, reference)
        return _build(self, secrets)


def binding_of(sink: Sink | FencedSink) -> dict[str, Any]:
    """Return the options of an open sink that decide which record is written, as JSON; none where it names none."""
    try:
        return dict(json.loads(json.dumps(sink.binding()))) if isinstance(sink, BoundSink) else {}
    except (TypeError, ValueError) as error:
        raise SinkConfigurationError(
            f"{type(sink).__name__}.binding(): expected names and JSON values: {error}"
        ) from None


def is_kind(kind: object) -> bool:
    """Tell whether there can be sinks of a kind: a built-in one, or ``module:factory``."""
    return isinstance(kind, str) and (kind in (*_BUILT_IN, _COMPOSITE) or _OWN.fullmatch(kind) is not None)


@contextlib.contextmanager
def opened_sink(sink: SinkSpec | Sink | FencedSink) -> Iterator[Sink | FencedSink]:
    """Open a described sink and close it at the end; an open one stays open."""
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
    """Read the descriptions that a composite sink consists of."""
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
            # its rank is that of the whole batch: a part that lags behind would take all repeated deliveries
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
    """Find what makes a sink.

    :raises SinkConfigurationError: a package is missing, or the path leads to nothing that can be called.
    """
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
    """Refuse options that look like passwords: options are stored and shown."""
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
    """Refuse options that no driver would keep, before anything is sent to Spark."""
    url, where = options.get("url"), f"option 'url' of sink {kind}"
    if kind == "sql" and isinstance(url, str):
        check_sql_url(
            parse_url(url, where=where, error=SinkConfigurationError), where=where, error=SinkConfigurationError
        )
    hosts = options.get("hosts")
    if kind == "elasticsearch" and isinstance(options.get("client_options"), dict):
        client_arguments(options["client_options"], [hosts] if isinstance(hosts, str) else hosts or [])
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
    if spec.kind == "elasticsearch":
        hosts = options.get("hosts") or "http://localhost:9200"
        return ",".join(map(str, hosts)) if isinstance(hosts, list) else str(hosts)
    if spec.kind == "sql":
        return str(options.get("url") or spec.secrets.get("url", "sql"))
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    return f"{spec.kind}#{digest}" if options else spec.kind
