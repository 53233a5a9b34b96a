"""A client of Elasticsearch and OpenSearch that never repeats a request on its own.

It is the transport on which Elasticsearch's own client stands. That client would refuse OpenSearch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import elastic_transport
from elastic_transport.client_utils import url_to_node_config

from export_queue.core.drivers import basic_auth
from export_queue.core.errors import ExportQueueError, SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.elasticsearch.answers import ERRORS, NO_ANSWER, Outcome, whole
from export_queue.core.sinks.elasticsearch.products import OPENSEARCH, Product, is_elasticsearch, product_of
from export_queue.core.sinks.error_table import Fate

Result = TypeVar("Result")
Secret = str | Callable[[], str] | None
"""A secret, or a function that returns it."""

_OPAQUE_ID = "opaque_id"
_JSON = elastic_transport.OrjsonSerializer()
_SERIALIZERS = {
    f"application/{prefix}{kind}": _JSON for prefix in ("", "vnd.elasticsearch+") for kind in ("json", "x-ndjson")
}
"""Lines are bytes already, which the serializer of JSON leaves as they are."""


class _Quiet(threading.local):
    """Keeps lines about single requests of this thread out of logs: a drain sends thousands of them."""

    is_sending = False

    def __enter__(self) -> None:
        self.is_sending = True

    def __exit__(self, *_: object) -> None:
        self.is_sending = False

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not self.is_sending


_quiet = _Quiet()
logging.getLogger("elastic_transport.transport").addFilter(_quiet.filter)


class PutOff(Exception):
    """The server is busy, or another writer was faster: the request may be repeated.

    :param final: the error to raise if all repetitions fail.
    """

    def __init__(self, final: ExportQueueError) -> None:
        super().__init__(final.message)
        self.final = final


@dataclass(frozen=True, slots=True, eq=False)
class _Client:
    """Open connections, and the headers of one set of secrets."""

    transport: elastic_transport.Transport
    headers: Mapping[str, str] = field(repr=False)

    def send(
        self, method: str, path: str, params: Mapping[str, str] | None, headers: Mapping[str, str], body: Any
    ) -> tuple[int, Mapping[str, str], Any]:
        """Send one request, and return the status, the headers and the body of the answer."""
        target = f"{path}?{urlencode(params, safe=',*', quote_via=quote)}" if params else path
        with _quiet:
            meta, answer = self.transport.perform_request(
                method, target, headers={**self.headers, **headers}, body=body
            )
        return meta.status, meta.headers, answer


class Connection:
    """A client that is created at its first use, and again when the server refuses its secrets.

    :param product: what the server is.
    :param hosts: URLs of the cluster's nodes.
    :param api_key: replaces user and password.
    :param timeout: seconds to wait for an answer.
    :param options: further arguments of the client.
    :raises SinkConfigurationError: the client does not know an argument.
    """

    retry = Retry(attempts=8, first_pause=0.04, longest_pause=2.5)
    """How requests are repeated after :class:`PutOff`."""

    def __init__(
        self,
        product: Product,
        hosts: Sequence[str],
        *,
        username: str | None,
        password: Secret,
        api_key: Secret,
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        self._product = product
        self._hosts = list(hosts)
        self._username = username
        self._secrets = _Secrets(password=password, api_key=api_key)
        self.timeout = timeout
        self.patience = f"{int(timeout * 500)}ms"
        """Time limit for the server, so that its own answer comes before the time-out."""
        self._options = dict(options)
        self._lock = threading.Lock()
        self._client: _Client | None = None
        self._retired: list[_Client] = []
        """Clients whose secrets were refused. Other threads may still use them, and are refused too."""
        self._greeted: _Client | None = None
        """The client whose server is known to be of the product."""
        try:
            self._transport().close()
        except (TypeError, ValueError, OSError, elastic_transport.TransportError) as error:
            raise SinkConfigurationError(f"{self}: {error}") from None

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
    ) -> tuple[int, Any]:
        """Send one request. Send it again only if the server refuses the secrets and newer ones are found.

        :param body: JSON, or the lines of a bulk request.
        :returns: the status, also of a refusal, and the answer.
        :raises SinkUnavailable: no answer arrived. The request may have taken effect.
        :raises SinkConfigurationError: the server is another product.
        """
        client = self._opened()
        status, answer = self._send(client, method, path, params, body)
        if status == 401 and self._renew(client):  # the request had no effect
            status, answer = self._send(self._opened(), method, path, params, body)
        return status, answer

    def demand(self, method: str, path: str, **arguments: Any) -> Any:
        """Send one request as :meth:`ask` does, and return the answer; a refusal is an error."""
        status, answer = self.ask(method, path, **arguments)
        if status not in (200, 201):
            raise whole(status, answer).explain(f"{self}, {path}")
        return answer

    def read(self, path: str) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        """Read a document, None if it does not exist, and the condition for replacing this version of it."""

        def attempt() -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
            status, answer = self.ask("GET", path)
            if status == 200:
                guard = {"if_seq_no": str(answer["_seq_no"]), "if_primary_term": str(answer["_primary_term"])}
                return answer["_source"], guard
            if status == 404:
                return None, {"op_type": "create"}
            outcome = whole(status, answer)
            error = outcome.explain(f"{self}, {path}")
            # its index may have been created a moment ago
            raise PutOff(error) if outcome.type == "no_shard_available_action_exception" else error

        return self.repeat(attempt)

    def change(
        self,
        path: str,
        decide: Callable[[Mapping[str, Any] | None], Mapping[str, Any] | None],
        complaint: str,
    ) -> None:
        """Replace a document, and try again if another writer was faster.

        :param decide: returns the new document, given the present one (None if it does not exist); None to keep it.
        :param complaint: message of the error if another writer was faster each time.
        """

        def attempt() -> None:
            found, guard = self.read(path)
            wanted = decide(found)
            if wanted is None:
                return
            outcome = whole(*self.ask("PUT", path, params={**guard, "timeout": self.patience}, body=wanted))
            if outcome.meaning in (Outcome.STALE, Fate.AGAIN):
                raise PutOff(SinkUnavailable(complaint))
            if outcome.meaning is not Outcome.WRITTEN:
                raise outcome.explain(f"{self}, {path}")

        self.repeat(attempt)

    def repeat(self, step: Callable[[], Result]) -> Result:
        """Repeat a step while it raises :class:`PutOff`, within the limits of :attr:`retry`."""
        try:
            return self.retry.call(step, worth_repeating=lambda error: isinstance(error, PutOff))
        except PutOff as put_off:
            raise put_off.final from None

    def close(self) -> None:
        """Close all connections; the next use opens them again."""
        with self._lock:
            clients, self._client, self._retired = [self._client, *self._retired], None, []
        for client in clients:
            if client is not None:
                client.transport.close()

    def _send(
        self, client: _Client, method: str, path: str, params: Mapping[str, str] | None, body: Any
    ) -> tuple[int, Any]:
        try:
            if self._product is OPENSEARCH and self._greeted is not client:
                status, headers, answer = client.send("GET", "/", None, self._product.headers(None), None)
                if status in (200, 404) and product_of(answer)[0] is not OPENSEARCH:
                    raise self._foreign(client)
                if status not in (200, 403):  # a user who may not see the version may still write
                    return status, answer
                self._greeted = client
            status, headers, answer = client.send(method, path, params, self._product.headers(body), body)
            if is_elasticsearch(headers) is (self._product is OPENSEARCH) and (status < 300 or status == 404):
                raise self._foreign(client)  # before anything is created there
            if (status < 300 or status == 404) and not isinstance(answer, dict):
                raise self._foreign(client)  # such as the page of a proxy
            return status, answer
        except elastic_transport.TlsError as error:
            raise SinkRefused(f"{self}: {error.message}", hint="check the certificates in client_options") from error
        except elastic_transport.TransportError as error:
            self.close()  # the secrets may have changed when the server returns
            raise ERRORS.find(NO_ANSWER).error(f"{self} does not answer: {error.message}") from error

    def _opened(self) -> _Client:
        with self._lock:
            if self._client is None:
                self._secrets.find()
                self._client = self._open()
            return self._client

    def _renew(self, refused: _Client) -> bool:
        """Look the secrets up again, and return whether the client has changed.

        :param refused: the client whose secrets the server refused.
        """
        with self._lock:
            if self._client is not refused:
                return True  # another thread has renewed it already
            if not self._secrets.find():
                return False
            self._client = self._open()
            self._retired.append(refused)
        return True

    def _foreign(self, client: _Client) -> SinkConfigurationError | SinkUnavailable:
        _, headers, greeting = client.send("GET", "/", None, {"accept": "application/json"}, None)
        product, called = product_of(greeting)
        if product is self._product and (product is OPENSEARCH or is_elasticsearch(headers)):
            return SinkUnavailable(
                f"{self}: {called} answers, but something in between has answered one request",
                hint="look at the proxies in between, and try again",
            )
        is_other = product not in (None, self._product)
        return SinkConfigurationError(
            f"{self}: what answers is {called}, expected {self._product.expected}",
            hint=self._product.other if is_other else "check the address of the sink, and proxies in between",
        )

    def _open(self) -> _Client:
        api_key, username = self._secrets.found["api_key"], self._username
        headers = {"user-agent": "airflow-provider-export-queue"}
        if _OPAQUE_ID in self._options:
            headers["x-opaque-id"] = self._options[_OPAQUE_ID]
        if api_key:
            headers["authorization"] = f"ApiKey {api_key}"
        elif username is not None:
            headers["authorization"] = f"Basic {basic_auth(username, self._secrets.found['password'] or '')}"
        return _Client(self._transport(), headers)

    def _transport(self) -> elastic_transport.Transport:
        options = {name: value for name, value in self._options.items() if name != _OPAQUE_ID}
        nodes = [url_to_node_config(host).replace(**options, request_timeout=self.timeout) for host in self._hosts]
        return elastic_transport.Transport(
            nodes,
            # a lost request may have been applied; only the drain decides whether to repeat it
            max_retries=0,
            retry_on_timeout=False,
            retry_on_status=(),
            serializers=_SERIALIZERS,
            meta_header=False,
        )

    def __str__(self) -> str:
        return f"{self._product.name} at {', '.join(host.partition('://')[2] or host for host in self._hosts)}"


class _Secrets:
    """Finds secrets, and keeps them out of any printed form."""

    def __init__(self, **secrets: Secret) -> None:
        self._secrets = secrets
        self.found: dict[str, str | None] = {}

    def find(self) -> bool:
        """Look all secrets up, and return whether any has changed."""
        before = self.found
        self.found = {name: secret() if callable(secret) else secret for name, secret in self._secrets.items()}
        return self.found != before

    def __repr__(self) -> str:
        return "<secrets>"
