"""The Elasticsearch sink: bulk requests whose items carry the rank of their record as an external version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from export_queue.core.drivers import check_files, client_arguments
from export_queue.core.errors import SinkConfigurationError, SinkLostData, SinkRefused, SinkUnavailable
from export_queue.core.references import has_password
from export_queue.core.sinks.batch import Reasons, apply_batch, isolate, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.control import check_loss, check_owner, stale_rank
from export_queue.core.sinks.elasticsearch import indices, lines, sweep
from export_queue.core.sinks.elasticsearch.answers import DONE, OF_DOCUMENTS, Answer, Meaning, items_of, whole
from export_queue.core.sinks.elasticsearch.connection import Connection, PutOff, Secret
from export_queue.core.sinks.elasticsearch.floor import Floor, unreadable
from export_queue.core.sinks.naming import first_collection, is_fixed
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection

REQUESTS_AT_ONCE = 2
"""How many requests of one batch are under way: while the server is at work on one, the next one is packed and sent."""
REQUEST_ROWS = 1000
REQUEST_BYTES = 1 << 20
"""Bytes of ids and documents of a request; a single larger operation is sent alone."""
_STATUS = "errors,items.*.status,items.*.error.type"
_REASONS = f"{_STATUS},items.*.error.reason,items.*.error.caused_by.reason"


@dataclass(frozen=True, slots=True)
class _Request:
    """Operations on distinct records that are sent together."""

    alias: str
    operations: Operations
    positions: Sequence[int]
    """Of the operations, in their batch."""


def _control_path(queue_id: str) -> str:
    return f"/{indices.CONTROL}/_doc/{quote(queue_id, safe='')}"


class ElasticsearchSink:
    """Documents in indices of one Elasticsearch cluster, each index behind an alias that hides deleted records.

    :param hosts: URL of the cluster, or of several of its nodes.
    :param username: the user.
    :param password: the password, or a callable that returns it, asked again when the server refuses it.
    :param api_key: an API key in the place of user and password, or a callable.
    :param index: template of the names that readers use, from ``$collection``. A name is an alias of one index.
    :param create_indices: whether missing indices, and the index of control records, are created.
    :param client_options: further arguments of the client: ``ca_certs``, ``ssl_assert_fingerprint``, ``verify_certs``,
        ``client_cert``, ``client_key``, ``http_compress``, …
    :param timeout: seconds to wait for an answer; a batch that takes longer counts as failed.
    :raises SinkConfigurationError: an option is not valid.
    """

    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)

    def __init__(
        self,
        hosts: str | Sequence[str] = "http://localhost:9200",
        username: str | None = None,
        password: Secret = None,
        api_key: Secret = None,
        index: str = "$collection",
        create_indices: bool = True,
        client_options: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        if not isinstance(index, str):
            raise SinkConfigurationError(f"index: expected a template such as $collection, found {index!r}")
        nodes = [hosts] if isinstance(hosts, str) else list(hosts)
        if not nodes or any(has_password(node) for node in nodes):
            raise SinkConfigurationError("hosts: expected https://host:port, without a password")
        options = client_arguments(client_options or {}, nodes)
        files = ("ca_certs", "client_cert", "client_key")
        check_files(options, *files, where="client_options", error=SinkConfigurationError)
        if not timeout > 0:
            raise SinkConfigurationError(f"timeout: expected seconds, found {timeout!r}")
        if api_key is not None and (username is not None or password is not None):
            raise SinkConfigurationError("give either api_key, or username and password")
        if password is not None and username is None:
            raise SinkConfigurationError("a password goes with a username")
        self._template = indices.check_template(index)
        self._create = create_indices
        self._ready: set[str] = set()
        self._proven: set[str] = set()
        self._queue_id: str | None = None
        """The queue whose drain is at work; None where a sink is used without a drain."""
        # so that the server's own answer comes before the time-out
        self._patience = f"{int(timeout * 500)}ms"
        self._connection = Connection(
            nodes, username=username, password=password, api_key=api_key, timeout=timeout, options=options
        )
        self._floor = Floor(self._connection, timeout=timeout)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the server and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        self._proven.clear()  # each drain proves the indices anew
        self._queue_id = queue_id
        if shown and self._look(indices.CONTROL) is None:  # nothing is created where all is lost
            check_owner(None, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown)
        self._ensure(indices.CONTROL, indices.control_definition())
        path = _control_path(queue_id)

        def record() -> None:
            source, guard = self._read_control(queue_id)
            found = indices.read_control(source) if source is not None else None
            wanted = check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown)
            known_since = indices.read_since(source) if source is not None else fence
            since = fence if readmit else known_since
            if readmit:
                self._forget_lost(fence)
            else:
                self._prove_first(queue_id)
            self._floor.register_store(store_id)
            if wanted == found and since == known_since:
                return
            params = {**guard, "timeout": self._patience}
            body = indices.write_control(wanted, since)
            status, answer = self._connection.ask("PUT", path, params=params, body=body)
            if status in (200, 201):
                return
            outcome = whole(status, answer)
            if outcome.meaning not in (Meaning.STALE, Meaning.BUSY):
                raise outcome.explain(f"{self}, {indices.CONTROL}")
            raise PutOff(SinkUnavailable(f"{self}: the control record of queue {queue_id!r} changes all the time"))

        self._connection.repeat(record)
        if readmit:
            self._ready.clear()  # what this object saw before the loss may be gone
            self._proven.clear()
            self._prove_first(queue_id)

    def binding(self) -> Mapping[str, Any]:
        """Template of the indices; see :class:`~export_queue.core.sinks.BoundSink`."""
        return {"kind": "elasticsearch", "index": self._template}

    def continue_drain(self, queue_id: str) -> None:
        """Take the batches of a queue; see :class:`~export_queue.core.sinks.ContinuingSink`."""
        self._queue_id = queue_id

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        aliases, refused = indices.fill_collections(self._template, set(operations.collections))
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused, queue_id=self._queue_id)
        refuse_seqs(operations, reasons)
        lines.refuse(operations, reasons)
        try:
            return apply_batch(retarget(operations, aliases), reasons=reasons, write=self._write)
        except Exception:
            self._ready.clear()  # look at the indices again: they may have become others
            self._proven.clear()
            raise

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Remove tombstones; see :class:`~export_queue.core.sinks.SweepableSink`.

        It waits for a while after it has raised the floor: see :mod:`export_queue.core.sinks.elasticsearch.floor`.
        """
        self._ensure(indices.CONTROL, indices.control_definition())
        raised = self._floor.raise_floor(store_id, floor)
        return sweep.sweep(self._connection, template=self._template, floor=raised)

    def create(self, collection: str) -> None:
        """Create the index of a collection, and its alias, if they are missing.

        :param collection: the collection.
        """
        self._prepare(self._alias(collection))

    def ddl(self, *collections: str) -> str:
        """Return the requests that bring about what the sink still needs, to be sent by a user with more rights.

        See :class:`~export_queue.core.sinks.PreparableSink`.

        :param collections: whose indices are wanted; the index of control records comes first.
        """
        return indices.console(self._missing(collections))

    def run_ddl(self, *collections: str) -> str:
        """Bring about what the sink still needs.

        :param collections: whose indices are wanted.
        :returns: the requests.
        :raises SinkConfigurationError: an index cannot be a sink even so.
        """
        requests = self._missing(collections)

        def attempt() -> None:
            for request in self._missing(collections):
                method, path, body = request
                status, answer = self._connection.ask(method, path, body=body)
                outcome = whole(status, answer)
                if outcome.type == "resource_already_exists_exception" or outcome.meaning is Meaning.BUSY:
                    raise PutOff(SinkUnavailable(f"{self}: {path} exists already, and is not what the sink needs"))
                if outcome.meaning is Meaning.UNAVAILABLE:
                    raise outcome.explain(f"{self}, {path}")
                if status != 200:
                    hint = f"let a user with more rights send:\n{indices.console([request])}"
                    raise SinkRefused(f"{self}, {path}: {outcome}", hint=hint)

        self._connection.repeat(attempt)
        for collection in collections:
            self._check(self._alias(collection))
        return indices.console(requests)

    def _missing(self, collections: Sequence[str]) -> list[indices.Request]:
        control = indices.creation(indices.control_definition())
        found = [] if self._look(indices.CONTROL) is not None else [control]
        for alias in dict.fromkeys(map(self._alias, collections)):
            found += indices.missing(alias, self._look(alias))
        return found

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def _write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records above the floor."""
        for alias in sorted(set(operations.collections)):
            self._prepare(alias)
        floor = self._floor.read()
        if floor:
            stale = stale_rank(floor)
            above = [i for i, rank in enumerate(operations.ranks()) if rank > stale]
            if len(above) < len(operations):
                result = self._write_above(operations.take(above), floor)
                rejected = tuple(Rejection(above[one.position], one.reason) for one in result.rejected)
                return ApplyResult(result.written, len(operations) - result.written - len(rejected), rejected)
        return self._write_above(operations, floor)

    def _write_above(self, operations: Operations, floor: int) -> ApplyResult:
        """Write operations that all are above the floor."""
        requests = list(_requests(operations))
        written, rejected = 0, list[Rejection]()
        for request, answers in zip(requests, self._settle_all(requests, floor), strict=True):
            if answers.count(DONE) == len(answers):
                written += len(answers)
                continue
            for i, answer in zip(request.positions, answers, strict=True):
                if answer.meaning is Meaning.WRITTEN:
                    written += 1
                elif answer.meaning is not Meaning.STALE:
                    rejected.append(Rejection(i, str(answer)))
        rejected.sort(key=lambda rejection: rejection.position)
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def _settle_all(self, requests: Sequence[_Request], floor: int) -> list[list[Answer]]:
        """Settle requests, of which some are under way at once: their records are distinct, so any order will do."""

        def settle(request: _Request) -> list[Answer]:
            return self._settle(request.alias, lines.lines_of(request.operations), floor)

        if len(requests) == 1:
            return [settle(requests[0])]
        # Leaving the block waits for the threads: when a batch counts as failed, nothing of it is on its way.
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="export-queue-bulk") as threads:
            under_way = [threads.submit(settle, request) for request in requests]
            try:
                return [one.result() for one in under_way]
            except BaseException:
                for one in under_way:
                    one.cancel()
                raise

    def _settle(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool = False) -> list[Answer]:
        """Send operations until each of them is written, stale or refused for ever."""
        answers = self._send_patiently(alias, wanted, floor, reasons)
        if answers.count(DONE) == len(answers):
            return answers
        poison = [i for i, answer in enumerate(answers) if answer.meaning is Meaning.POISON]
        if not poison or reasons:
            return answers
        if any(answers[i].type not in OF_DOCUMENTS for i in poison):
            self._check(alias)  # an index that is not fit any more refuses operations that are not to blame
        # asked for in every answer, the reasons of all that is stale would cost more than everything else
        again = self._settle(alias, [wanted[i] for i in poison], floor, reasons=True)
        for i, answer in zip(poison, again, strict=True):
            answers[i] = answer
        return answers

    def _send_patiently(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool) -> list[Answer]:
        """Send operations, and those again, after longer and longer pauses, for which the server has no room."""
        answers: dict[int, Answer] = {}
        waiting: Sequence[int] = range(len(wanted))

        def send_waiting() -> list[Answer]:
            nonlocal waiting
            found = self._send(alias, [wanted[i] for i in waiting] if answers else wanted, floor, reasons)
            if not answers and found.count(DONE) == len(found):
                return found
            answers.update(zip(waiting, found, strict=True))
            waiting = [i for i in waiting if answers[i].meaning is Meaning.BUSY]
            if waiting:
                many = f"{len(waiting)} operations put off {self._connection.retry.attempts} times"
                raise PutOff(answers[waiting[0]].explain(f"{self}, {alias}: {many}"))
            return [answers[i] for i in range(len(wanted))]

        return self._connection.repeat(send_waiting)

    def _send(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool) -> list[Answer]:
        """Send one bulk request, or several smaller ones where the server refuses it as a whole."""
        answers = [DONE] * len(wanted)

        def attempt(chosen: range) -> Answer | None:
            found = self._request(alias, wanted[chosen.start : chosen.stop], floor, reasons)
            if isinstance(found, Answer):
                return found
            answers[chosen.start : chosen.stop] = found
            return None

        for i, answer in isolate(len(wanted), attempt, weigh=lambda i: len(wanted[i])):
            answers[i] = answer
        return answers

    def _request(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool) -> list[Answer] | Answer:
        """Send one bulk request.

        :returns: an answer to each operation, or one to all of them: together they are too much or not acceptable.
        """
        params = {
            "require_alias": "true",
            "timeout": self._patience,
            "filter_path": _REASONS if reasons else _STATUS,
        }
        self._floor.require(floor)
        status, body = self._connection.ask("POST", f"/{alias}/_bulk", params=params, body=b"".join(wanted))
        if status != 200:
            answer = whole(status, body)
            if answer.meaning is Meaning.BUSY:
                return [answer] * len(wanted)
            if answer.meaning in (Meaning.TOO_LARGE, Meaning.POISON):
                return answer
            raise answer.explain(f"{self}, {alias}")
        answers = list(items_of(body))
        if len(answers) != len(wanted):
            raise SinkRefused(
                f"{self}, {alias}: {len(answers)} answers to {len(wanted)} operations; which belongs to which?"
            )
        for i, answer in enumerate(answers) if answers.count(DONE) != len(answers) else ():
            if answer.meaning in (Meaning.UNAVAILABLE, Meaning.REFUSED, Meaning.UNFIT):
                if not reasons:  # they say which block it is, or what else is wrong
                    self._request(alias, [wanted[i]], floor, reasons=True)
                raise answer.explain(f"{self}, {alias}")
        return answers

    def _alias(self, collection: str) -> str:
        aliases, refused = indices.fill_collections(self._template, [collection])
        if refused:
            raise SinkConfigurationError(refused[collection])
        return aliases[collection]

    def _prove_first(self, queue_id: str) -> None:
        """Prove, before a drain reads, the index that it will write to as far as that is known by now."""
        collection = first_collection(queue_id)
        alias = indices.fill_collections(self._template, [collection])[0].get(collection)
        if alias is None:
            return
        record = self._floor.whole_record()
        if is_fixed(self._template) or alias in record.known or alias in record.lost:
            self._prepare(alias)

    def _read_control(self, queue_id: str) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        """Read a queue's control record, and on what condition it may be replaced."""
        status, answer = self._connection.ask("GET", _control_path(queue_id))
        if status == 200:
            guard = {"if_seq_no": str(answer["_seq_no"]), "if_primary_term": str(answer["_primary_term"])}
            return answer["_source"], guard
        if status == 404:
            return None, {"op_type": "create"}
        raise unreadable(whole(status, answer), f"{self}, {indices.CONTROL}")

    def _forget_lost(self, fence: int) -> None:
        """Forget the indices that were written to and are not there any more as they were.

        :param fence: of the queue that goes on without what they held.
        """
        for alias, identity in self._floor.known_indices().items():
            if indices.may_name(self._template, alias) and self._identity(alias) != identity:
                self._floor.forget_index(alias, fence=fence)

    def _prepare(self, alias: str) -> None:
        """Make sure, once, that an alias is there and can hold the guarantees; once a drain, that it lost nothing."""
        if alias in self._proven:
            return
        record = self._floor.whole_record()
        known, lost_at = record.known.get(alias), record.lost.get(alias)
        if lost_at is not None and self._queue_id is not None:
            source, _ = self._read_control(self._queue_id)
            since = None if source is None else indices.read_since(source)
            check_loss(lost_at, since, what=f"the index behind {alias!r}", queue_id=self._queue_id, sink=str(self))
        if alias not in self._ready:
            if known is None:
                self._ensure(alias, indices.definition(alias))
            elif self._look(alias) is None:
                self._prove(alias, known)
            self._check(alias)
            self._ready.add(alias)
        found = self._identity(alias)
        self._prove(alias, known or self._floor.note_index(alias, found or ""))
        self._proven.add(alias)

    def _prove(self, alias: str, known: str) -> None:
        """Make sure that an alias leads to the index that it was known to lead to.

        :raises SinkLostData: it leads to another one, or to none.
        """
        found = self._identity(alias)
        if found == known:
            return
        what = f"the index behind {alias!r} of {self}"
        if found is None:
            raise SinkLostData(f"{what} is gone: expected {known}, found none")
        message = f"{what} is another one, or was restored: expected {known}, found {found}"
        status, answer = self._connection.ask("GET", f"/{alias}/_count")
        if status == 200 and answer["count"] == 0:
            raise SinkLostData(message)
        raise SinkLostData.older(f"{message}; its documents may be of an older state")

    def _identity(self, alias: str) -> str | None:
        found = self._look(alias)
        return indices.identity(found) if found is not None and len(found) == 1 else None

    def _check(self, alias: str) -> None:
        found = self._look(alias)
        problems = indices.misfits(alias, found) if found is not None else ["it is not there"]
        if problems:
            raise SinkConfigurationError(
                f"{alias!r} of {self} cannot be a sink:\n  " + "\n  ".join(problems),
                hint="name another, or make it like this one (export-queue ddl COLLECTION --sink … --run adds what it "
                f"lacks):\n{indices.console([indices.creation(indices.definition(alias))])}",
            )

    def _look(self, name: str) -> Mapping[str, Any] | None:
        status, answer = self._connection.ask("GET", f"/{name}")
        if status == 404:
            return None
        if status != 200:
            raise whole(status, answer).explain(f"{self}, {name}")
        found: Mapping[str, Any] = answer
        return found

    def _ensure(self, name: str, definition: tuple[str, Mapping[str, Any]]) -> None:
        """Create what is missing; another process may do the same at this moment."""
        index, body = definition
        request = indices.console([indices.creation(definition)])

        def create() -> None:
            if name in self._ready or self._look(name) is not None:
                return
            if not self._create:
                raise SinkRefused(f"{self} has no {name!r}", hint=f"create it:\n{request}")
            status, answer = self._connection.ask("PUT", f"/{index}", body=body)
            outcome = whole(status, answer)
            if outcome.type == "resource_already_exists_exception" or outcome.meaning is Meaning.BUSY:
                raise PutOff(
                    SinkConfigurationError(
                        f"{self} has an index {index!r}, but nothing is called {name!r}",
                        hint=f"give that index the alias, or remove it; the sink would create:\n{request}",
                    )
                )
            if outcome.meaning is Meaning.UNAVAILABLE:
                raise outcome.explain(f"{self}, {index}")
            if status != 200:
                raise SinkRefused(f"{self}, {index}: {outcome}", hint=f"let a user with more rights send:\n{request}")

        self._connection.repeat(create)

    def __str__(self) -> str:
        return str(self._connection)

    def __repr__(self) -> str:
        return f"<ElasticsearchSink {self._connection} {self._template}>"


def _requests(operations: Operations) -> Iterator[_Request]:
    """Cut a batch into requests."""
    by_alias: dict[str, list[int]] = {}
    for i, alias in enumerate(operations.collections):
        by_alias.setdefault(alias, []).append(i)
    for alias, positions in sorted(by_alias.items()):
        part = operations if len(by_alias) == 1 else operations.take(positions)
        start = 0
        for piece in part.slices(rows=REQUEST_ROWS, size=REQUEST_BYTES):
            yield _Request(alias, piece, positions[start : start + len(piece)])
            start += len(piece)
