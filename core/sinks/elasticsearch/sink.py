"""The sinks for Elasticsearch and OpenSearch: bulk requests in which the rank of a record is its external version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from export_queue.core.drivers import check_files, check_hosts, client_arguments
from export_queue.core.errors import (
    ExportQueueError,
    SinkConfigurationError,
    SinkLostData,
    SinkRefused,
    SinkUnavailable,
)
from export_queue.core.sinks.batch import (
    Reasons,
    apply_batch,
    isolate,
    refuse_collections,
    refuse_seqs,
    refuse_ttls,
    retarget,
)
from export_queue.core.sinks.control import check_loss, check_owner, stale_rank
from export_queue.core.sinks.elasticsearch import indices, lines, scanning, sweep
from export_queue.core.sinks.elasticsearch.answers import DONE, OF_DOCUMENTS, Answer, Outcome, items_of, whole
from export_queue.core.sinks.elasticsearch.connection import Connection, PutOff, Secret
from export_queue.core.sinks.elasticsearch.products import ELASTICSEARCH, OPENSEARCH, Product
from export_queue.core.sinks.error_table import Fate
from export_queue.core.sinks.naming import first_collection, is_fixed
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection, StoredRecords

REQUESTS_AT_ONCE = 2
"""Requests of one batch that are sent at the same time: while the server works on one, the next one is packed."""
REQUEST_ROWS = 1000
REQUEST_BYTES = 1 << 20
"""Maximum bytes of ids and documents of a request. A single larger operation is sent alone."""
_STATUS = "errors,items.*.status,items.*.error.type"
_REASONS = f"{_STATUS},items.*.error.reason,items.*.error.caused_by.reason"


@dataclass(frozen=True, slots=True)
class _Request:
    """Operations on distinct records that are sent together."""

    alias: str
    operations: Operations
    positions: Sequence[int]
    """Positions of the operations in their batch."""


class ElasticsearchSink:
    """Documents in indices of one Elasticsearch cluster. Each index has an alias that hides deleted records.

    :param hosts: URL of the cluster, or URLs of several nodes.
    :param username: the user.
    :param password: the password, or a callable that returns it and is called again when the server refuses it.
    :param api_key: an API key instead of user and password, or a callable that returns it.
    :param index: template of the names that readers use, with ``$collection``. Each name is an alias of one index.
    :param create_indices: whether to create missing indices, also the index of control records.
    :param client_options: further arguments of the client: ``ca_certs``, ``ssl_assert_fingerprint``, ``verify_certs``,
        ``client_cert``, ``client_key``, ``http_compress``, …
    :param timeout: seconds to wait for an answer. A batch that takes longer counts as failed.
    :raises SinkConfigurationError: an option is not valid.
    """

    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)
    _product: ClassVar[Product] = ELASTICSEARCH

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
        check_hosts(nodes)
        options = client_arguments(client_options or {}, nodes, kind=self._product.kind)
        files = ("ca_certs", "client_cert", "client_key")
        check_files(options, *files, where="client_options", error=SinkConfigurationError)
        if not timeout > 0:
            raise SinkConfigurationError(f"timeout: expected seconds, found {timeout!r}")
        if api_key is not None and (username is not None or password is not None):
            raise SinkConfigurationError("give either api_key, or username and password")
        if password is not None and username is None:
            raise SinkConfigurationError("a password goes with a username")
        if username is not None and ":" in username:
            raise SinkConfigurationError("username: expected one without a colon, which HTTP cannot send")
        self._template = indices.check_template(index)
        self._create = create_indices
        self._ready: set[str] = set()
        self._proven: set[str] = set()
        self._queue_id: str | None = None
        """The queue that is drained; None if the sink is used without a drain."""
        self._connection = Connection(
            self._product,
            nodes,
            username=username,
            password=password,
            api_key=api_key,
            timeout=timeout,
            options=options,
        )
        self._floor = sweep.Floor(self._connection)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self._proven.clear()  # each drain proves the indices again
        self._queue_id = queue_id
        owner = {"queue_id": queue_id, "store_id": store_id, "sink": str(self)}
        if shown and self._look(indices.CONTROL) is None:  # nothing is created if everything is lost
            check_owner(None, **owner, fence=fence, shown=shown)
        self._ensure(indices.CONTROL, indices.control_definition())

        def decide(source: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
            found = indices.read_control(source) if source is not None else None
            wanted = check_owner(found, **owner, fence=fence, shown=shown)
            known_since = indices.read_since(source) if source is not None else fence
            since = fence if readmit else known_since
            if readmit:
                self._forget_lost(fence)
            else:
                self._prove_first(queue_id)
            self._floor.register_store(store_id)
            return None if wanted == found and since == known_since else indices.write_control(wanted, since)

        complaint = f"{self}: the control record of queue {queue_id!r} changes all the time"
        self._connection.change(indices.control_path(queue_id), decide, complaint)
        if readmit:
            self._ready.clear()  # what this object saw before the loss may be gone
            self._proven.clear()
            self._prove_first(queue_id)

    def binding(self) -> Mapping[str, Any]:
        return {"kind": self._product.kind, "index": self._template}

    def continue_drain(self, queue_id: str) -> None:
        self._queue_id = queue_id

    def apply(self, operations: Operations) -> ApplyResult:
        return self._apply(operations, repairs=False)

    def repair(self, operations: Operations) -> ApplyResult:
        return self._apply(operations, repairs=True)

    def _apply(self, operations: Operations, *, repairs: bool) -> ApplyResult:
        aliases, refused = indices.fill_collections(self._template, set(operations.collections))
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused, queue_id=self._queue_id)
        refuse_seqs(operations, reasons)
        lines.refuse(operations, reasons)
        try:
            return apply_batch(
                retarget(operations, aliases), reasons=reasons, write=partial(self._write, repairs=repairs)
            )
        except Exception:
            self._ready.clear()  # the indices may have been replaced: check them again
            self._proven.clear()
            raise

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Remove tombstones. After raising the floor, wait until all requests under way have ended."""
        self._ensure(indices.CONTROL, indices.control_definition())
        raised = self._floor.raise_floor(store_id, floor)
        return sweep.sweep(self._connection, template=self._template, floor=raised)

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        aliases, _ = indices.fill_collections(self._template, set(operations.collections))
        reasons: Reasons = {i: "" for i, name in enumerate(operations.collections) if name not in aliases}
        refuse_seqs(operations, reasons)
        refuse_ttls(operations, reasons, taken=False)
        lines.refuse(operations, reasons)
        taken = [i for i in range(len(operations)) if i not in reasons]
        kept = retarget(operations if not reasons else operations.take(taken), aliases)
        documents = [None if document is None else scanning.normal(document) for document in kept.documents]
        return StoredRecords(kept.collections, kept.ids, kept.ranks(), documents), taken

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        for alias in sorted(set(indices.fill_collections(self._template, collections)[0].values())):
            if (index := self._index_behind(alias)) is not None:
                yield from scanning.scan(self._connection, alias, index)

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        index = self._index_behind(target)
        if index is None:
            return StoredRecords([target] * len(ids), ids, [-1] * len(ids), [None] * len(ids))
        return scanning.look_up(self._connection, target, index, ids)

    def floor_of(self, target: str) -> int:
        return self._floor.whole_record().floor.floor

    def _index_behind(self, alias: str) -> str | None:
        found = self._look(alias)
        if found is None or len(found) == 1:
            return None if found is None else next(iter(found))
        raise SinkConfigurationError(f"{alias!r} of {self} is an alias of {len(found)} indices: expected one")

    def refresh(self) -> None:
        """Refresh the indices of the template that were written to."""
        known = self._floor.whole_record().known
        for alias in sorted(alias for alias in known if indices.may_name(self._template, alias)):
            status, answer = self._connection.ask("POST", f"/{alias}/_refresh")
            if status not in (200, 404):  # an index that was removed shows nothing
                raise whole(status, answer).explain(f"{self}, {alias}")

    def target(self, collection: str) -> str:
        return self._alias(collection)

    def pointed_at(self, pointer: str) -> str | None:
        found = self._look_at_pointer(pointer)
        if found is None:
            return None
        names: set[str] = {alias for index in found.values() for alias in index.get("aliases", {})}
        known = sorted(names & self._floor.whole_record().known.keys())
        if len(found) == 1 and len(known) == 1:
            return known[0]
        raise SinkConfigurationError(
            f"{pointer!r} of {self}: expected an alias of one index that the sink writes to, found one of "
            f"{', '.join(sorted(found))}",
            hint="give the pointer another name, or remove this alias",
        )

    def point(self, pointers: Mapping[str, str]) -> None:
        actions: list[Any] = []
        for pointer, collection in pointers.items():
            alias = self._alias(collection)
            self._prepare(alias)
            index = self._index_behind(alias)
            assert index is not None
            _, _, body = indices.pointing(pointer, index, self._look_at_pointer(pointer))
            actions += body["actions"]
        taken = SinkUnavailable(f"{self}: the aliases {', '.join(pointers)} are being changed by others")
        self._send_request(("POST", "/_aliases", {"actions": actions}), taken=taken)

    def _look_at_pointer(self, pointer: str) -> Mapping[str, Any] | None:
        """Describe the indices behind a pointer; refuse a name that the sink writes to, or that is an index."""
        reason = indices.refuse_name(pointer)
        if reason is None and pointer in self._floor.whole_record().known:
            reason = f"alias {pointer!r} is written to by drains: a pointer has a name of its own"
        found = None if reason else self._look(pointer)
        if found is not None and pointer in found:
            reason = f"{pointer!r} is an index, and cannot be an alias"
        if reason:
            raise SinkConfigurationError(f"{self}: {reason}", hint="give the pointer another name")
        return found

    def create(self, collection: str) -> None:
        """Create the index of a collection, and its alias, if they are missing."""
        self._prepare(self._alias(collection))

    def ddl(self, *collections: str) -> str:
        return indices.console(self._missing(collections))

    def run_ddl(self, *collections: str) -> str:
        requests = self._missing(collections)

        def attempt() -> None:
            for request in self._missing(collections):
                taken = SinkUnavailable(f"{self}: {request[1]} exists already, and is not what the sink needs")
                self._send_request(request, taken=taken)

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

    def probe(self) -> str:
        status, answer = self._connection.ask("GET", "/_cluster/health")
        if status == 403:
            return f"{self}; the user may not see the cluster's health, and need not"
        if status != 200:
            raise whole(status, answer).explain(str(self))
        return f"{self}, cluster {answer['cluster_name']}, status {answer['status']}"

    def close(self) -> None:
        self._connection.close()

    def _write(self, operations: Operations, *, repairs: bool) -> ApplyResult:
        """Write operations on distinct records, those above the floor, or for a repair all."""
        for alias in sorted(set(operations.collections)):
            self._prepare(alias)
        floor = self._floor.read()
        if repairs:
            return self._write_above(operations, floor, lines.AS_NEW)
        if floor:
            stale = stale_rank(floor)
            above = [i for i, rank in enumerate(operations.ranks()) if rank > stale]
            if len(above) < len(operations):
                result = self._write_above(operations.take(above), floor)
                rejected = tuple(Rejection(above[one.position], one.reason) for one in result.rejected)
                return ApplyResult(result.written, len(operations) - result.written - len(rejected), rejected)
        return self._write_above(operations, floor)

    def _write_above(self, operations: Operations, floor: int, version_type: bytes = lines.NEWER) -> ApplyResult:
        requests = list(_requests(operations))
        written, rejected = 0, list[Rejection]()
        for request, answers in zip(requests, self._settle_all(requests, floor, version_type), strict=True):
            if answers.count(DONE) == len(answers):
                written += len(answers)
                continue
            for i, answer in zip(request.positions, answers, strict=True):
                if answer.meaning is Outcome.WRITTEN:
                    written += 1
                elif answer.meaning is not Outcome.STALE:
                    rejected.append(Rejection(i, str(answer)))
        rejected.sort(key=lambda rejection: rejection.position)
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def _settle_all(self, requests: Sequence[_Request], floor: int, version_type: bytes) -> list[list[Answer]]:
        """Settle requests, several at the same time. Their records are distinct, so that the order does not matter."""

        def settle(request: _Request) -> list[Answer]:
            return self._settle(request.alias, lines.lines_of(request.operations, version_type), floor)

        if len(requests) == 1:
            return [settle(requests[0])]
        # leaving the block waits for the threads: when a batch counts as failed, none of its requests is under way
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="export-queue-bulk") as threads:
            under_way = [threads.submit(settle, request) for request in requests]
            try:
                return [one.result() for one in under_way]
            except BaseException:
                for one in under_way:
                    one.cancel()
                raise

    def _settle(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool = False) -> list[Answer]:
        """Send operations until each of them is written, stale or permanently refused."""
        answers = self._send_patiently(alias, wanted, floor, reasons)
        if answers.count(DONE) == len(answers):
            return answers
        poison = [i for i, answer in enumerate(answers) if answer.meaning is Fate.REJECTED]
        if not poison or reasons:
            return answers
        if any(answers[i].type not in OF_DOCUMENTS for i in poison):
            self._check(alias)  # an index that is no longer fit refuses operations that are valid
        # reasons are requested only here: those of stale operations would cost more than everything else
        again = self._settle(alias, [wanted[i] for i in poison], floor, reasons=True)
        for i, answer in zip(poison, again, strict=True):
            answers[i] = answer
        return answers

    def _send_patiently(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool) -> list[Answer]:
        """Send operations. Send those for which the server has no room again, after increasing pauses."""
        answers: dict[int, Answer] = {}
        waiting: Sequence[int] = range(len(wanted))

        def send_waiting() -> list[Answer]:
            nonlocal waiting
            found = self._send(alias, [wanted[i] for i in waiting] if answers else wanted, floor, reasons)
            if not answers and found.count(DONE) == len(found):
                return found
            answers.update(zip(waiting, found, strict=True))
            waiting = [i for i in waiting if answers[i].meaning is Fate.AGAIN]
            if waiting:
                many = f"{len(waiting)} operations put off {self._connection.retry.attempts} times"
                raise PutOff(answers[waiting[0]].explain(f"{self}, {alias}: {many}"))
            return [answers[i] for i in range(len(wanted))]

        return self._connection.repeat(send_waiting)

    def _send(self, alias: str, wanted: Sequence[bytes], floor: int, reasons: bool) -> list[Answer]:
        """Send one bulk request, or several smaller ones if the server refuses it as a whole."""
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

        :returns: an answer to each operation, or one answer to all if the request as a whole is refused.
        """
        params = {
            "require_alias": "true",
            "timeout": self._connection.patience,
            "filter_path": _REASONS if reasons else _STATUS,
        }
        self._floor.require(floor)
        status, body = self._connection.ask("POST", f"/{alias}/_bulk", params=params, body=b"".join(wanted))
        if status != 200:
            answer = whole(status, body)
            if answer.meaning is Fate.AGAIN:
                return [answer] * len(wanted)
            if answer.meaning in (Outcome.TOO_LARGE, Fate.REJECTED):
                return answer
            raise answer.explain(f"{self}, {alias}")
        answers = list(items_of(body))
        if len(answers) != len(wanted):
            raise SinkRefused(
                f"{self}, {alias}: {len(answers)} answers to {len(wanted)} operations; which belongs to which?"
            )
        for i, answer in enumerate(answers) if answers.count(DONE) != len(answers) else ():
            if answer.meaning in (Fate.LATER, Fate.REFUSED, Fate.CONFIGURATION):
                if not reasons:  # the reasons name the block, or the problem
                    self._request(alias, [wanted[i]], floor, reasons=True)
                raise answer.explain(f"{self}, {alias}")
        return answers

    def _alias(self, collection: str) -> str:
        aliases, refused = indices.fill_collections(self._template, [collection])
        if refused:
            raise SinkConfigurationError(refused[collection])
        return aliases[collection]

    def _prove_first(self, queue_id: str) -> None:
        """Before a drain reads, prove the index that it will probably write to."""
        collection = first_collection(queue_id)
        alias = indices.fill_collections(self._template, [collection])[0].get(collection)
        if alias is None:
            return
        record = self._floor.whole_record()
        if is_fixed(self._template) or alias in record.known or alias in record.lost:
            self._prepare(alias)

    def _forget_lost(self, fence: int) -> None:
        """Forget the indices that were written to and no longer exist unchanged.

        :param fence: fence of the queue that continues without their content.
        """
        for alias, identity in self._floor.whole_record().known.items():
            if indices.may_name(self._template, alias) and self._identity(alias) != identity:
                self._floor.forget_index(alias, fence=fence)

    def _prepare(self, alias: str) -> None:
        """Check once that an alias exists and can hold the guarantees, and once per drain that it lost nothing."""
        if alias in self._proven:
            return
        record = self._floor.whole_record()
        known, lost_at = record.known.get(alias), record.lost.get(alias)
        if lost_at is not None and self._queue_id is not None:
            source, _ = self._connection.read(indices.control_path(self._queue_id))
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
        """Check that the index behind an alias is the recorded one.

        :raises SinkLostData: it is another one, or there is none.
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
        """Create what is missing. Another process may do the same at this moment."""
        request = indices.creation(definition)
        text = indices.console([request])
        taken = SinkConfigurationError(
            f"{self} has an index {definition[0]!r}, but nothing is called {name!r}",
            hint=f"give that index the alias, or remove it; the sink would create:\n{text}",
        )

        def create() -> None:
            if name in self._ready or self._look(name) is not None:
                return
            if not self._create:
                raise SinkRefused(f"{self} has no {name!r}", hint=f"create it:\n{text}")
            self._send_request(request, taken=taken)

        self._connection.repeat(create)

    def _send_request(self, request: indices.Request, *, taken: ExportQueueError) -> None:
        """Create or change an index.

        :param taken: error if an index of this name still exists after all repetitions.
        """
        method, path, body = request
        status, answer = self._connection.ask(method, path, body=body)
        outcome = whole(status, answer)
        if outcome.type == "resource_already_exists_exception" or outcome.meaning is Fate.AGAIN:
            raise PutOff(taken)
        if outcome.meaning is Fate.LATER:
            raise outcome.explain(f"{self}, {path}")
        if status != 200:
            hint = f"let a user with more rights send:\n{indices.console([request])}"
            raise SinkRefused(f"{self}, {path}: {outcome}", hint=hint)

    def __str__(self) -> str:
        return str(self._connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection} {self._template}>"


class OpenSearchSink(ElasticsearchSink):
    """Documents in indices of one OpenSearch cluster. Each index has an alias that hides deleted records.

    :param hosts: URL of the cluster, or URLs of several nodes.
    :param username: the user.
    :param password: the password, or a callable that returns it and is called again when the server refuses it.
    :param index: template of the names that readers use, with ``$collection``. Each name is an alias of one index.
    :param create_indices: whether to create missing indices, also the index of control records.
    :param client_options: further arguments of the client: ``ca_certs``, ``ssl_assert_fingerprint``, ``verify_certs``,
        ``client_cert``, ``client_key``, ``http_compress``, ``opaque_id``, …
    :param timeout: seconds to wait for an answer. A batch that takes longer counts as failed.
    :raises SinkConfigurationError: an option is not valid.
    """

    _product = OPENSEARCH

    def __init__(
        self,
        hosts: str | Sequence[str] = "http://localhost:9200",
        username: str | None = None,
        password: Secret = None,
        index: str = "$collection",
        create_indices: bool = True,
        client_options: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        super().__init__(
            hosts,
            username,
            password,
            index=index,
            create_indices=create_indices,
            client_options=client_options,
            timeout=timeout,
        )


def _requests(operations: Operations) -> Iterator[_Request]:
    """Divide a batch into requests."""
    by_alias: dict[str, list[int]] = {}
    for i, alias in enumerate(operations.collections):
        by_alias.setdefault(alias, []).append(i)
    for alias, positions in sorted(by_alias.items()):
        own = operations if len(by_alias) == 1 else operations.take(positions)
        for part in own.parts(rows=REQUEST_ROWS, size=REQUEST_BYTES):
            yield _Request(alias, own.cut(part.start, part.stop), positions[part.start : part.stop])
