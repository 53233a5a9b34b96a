"""A client of Elasticsearch that never repeats a request on its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import elastic_transport
import elasticsearch

from export_queue.core.drivers import basic_auth
from export_queue.core.errors import ExportQueueError, SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.elasticsearch.answers import ERRORS, NO_ANSWER, Outcome, whole
from export_queue.core.sinks.error_table import Fate

Result = TypeVar("Result")
Secret = str | Callable[[], str] | None
"""A secret, or a function that returns it."""

# servers of 8.x and 9.x understand 8; by default a client asks for its own version
_JSON = "application/vnd.elasticsearch+json; compatible-with=8"
_LINES = "application/vnd.elasticsearch+x-ndjson; compatible-with=8"
_HEADERS = {"accept": _JSON, "content-type": _JSON}
_BULK_HEADERS = {"accept": _JSON, "content-type": _LINES}


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


class Connection:
    """A client that is created at its first use, and again when the server refuses its secrets.

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
        hosts: Sequence[str],
        *,
        username: str | None,
        password: Secret,
        api_key: Secret,
        timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        self._hosts = list(hosts)
        self._username = username
        self._secrets = _Secrets(password=password, api_key=api_key)
        self.timeout = timeout
        self.patience = f"{int(timeout * 500)}ms"
        """Time limit for the server, so that its own answer comes before the time-out."""
        self._options = dict(options)
        self._lock = threading.Lock()
        self._client: elasticsearch.Elasticsearch | None = None
        self._retired: list[elasticsearch.Elasticsearch] = []
        """Clients whose secrets were refused. Other threads may still use them, and are refused too."""
        try:
            elasticsearch.Elasticsearch(self._hosts, **self._options).close()
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
        :raises SinkConfigurationError: the server is not Elasticsearch.
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
                client.close()

    def _send(
        self,
        client: elasticsearch.Elasticsearch,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Any,
    ) -> tuple[int, Any]:
        headers = _BULK_HEADERS if isinstance(body, bytes) else _HEADERS
        if body is None:
            headers = {"accept": _JSON}
        try:
            with _quiet:
                response = client.perform_request(method, path, params=params, headers=headers, body=body)
        except elasticsearch.UnsupportedProductError:
            raise self._foreign() from None
        except elasticsearch.ApiError as error:
            if error.meta.status == 404 and "x-elastic-product" not in error.meta.headers:
                raise self._foreign() from None  # before anything is created there
            return error.meta.status, error.body
        except elastic_transport.TlsError as error:
            raise SinkRefused(f"{self}: {error.message}", hint="check the certificates in client_options") from error
        except elastic_transport.TransportError as error:
            self.close()  # the secrets may have changed when the server returns
            raise ERRORS.find(NO_ANSWER).error(f"{self} does not answer: {error.message}") from error
        return response.meta.status, response.body

    def _opened(self) -> elasticsearch.Elasticsearch:
        with self._lock:
            if self._client is None:
                self._secrets.find()
                self._client = self._open()
            return self._client

    def _renew(self, refused: elasticsearch.Elasticsearch) -> bool:
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

    def _foreign(self) -> SinkConfigurationError:
        return SinkConfigurationError(f"{self}: what answers is not Elasticsearch")

    def _open(self) -> elasticsearch.Elasticsearch:
        api_key, username = self._secrets.found["api_key"], self._username
        return elasticsearch.Elasticsearch(
            self._hosts,
            api_key=api_key,
            basic_auth=None
            if api_key or username is None
            else basic_auth(username, self._secrets.found["password"] or ""),
            # a lost request may have been applied; only the drain decides whether to repeat it
            max_retries=0,
            retry_on_timeout=False,
            retry_on_status=(),
            request_timeout=self.timeout,
            serializers={"application/vnd.elasticsearch+json": elasticsearch.OrjsonSerializer()},
            **self._options,
        )

    def __str__(self) -> str:
        return f"Elasticsearch at {', '.join(host.partition('://')[2] or host for host in self._hosts)}"


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
