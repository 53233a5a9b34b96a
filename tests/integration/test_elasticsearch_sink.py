"""The sinks of Elasticsearch and OpenSearch on real servers: the conformance suite, and every trap of bulk requests."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import orjson
import pytest
from elastic_transport import NodeConfig, Transport
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import free_port
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    ElasticsearchSink,
    ExportQueueError,
    Operations,
    SinkBelongsToAnother,
    SinkConfigurationError,
    SinkLostData,
    SinkRefused,
    SinkSpec,
    SinkUnavailable,
)
from export_queue.core.sinks import MAX_SEQ
from export_queue.core.sinks.elasticsearch import indices, sweep
from export_queue.core.sinks.elasticsearch import sink as sink_module
from export_queue.core.sinks.elasticsearch.connection import Connection
from export_queue.core.testing.conformance.histories import apply_patiently
from export_queue.testing import SinkConformance

pytestmark = pytest.mark.timeout(240)  # the first test of a version waits for its server
_names = itertools.count()


@pytest.fixture
def name(elasticsearch_server: ElasticsearchServer) -> Iterator[str]:
    """A name of an index for one test; whatever begins with it is deleted afterwards, and the floor."""
    fresh = f"t{os.getpid()}x{next(_names)}"
    yield fresh
    listed = elasticsearch_server.request("GET", f"/{fresh}*,least*?expand_wildcards=all")[1]
    for index in listed:
        elasticsearch_server.request("DELETE", f"/{index}")
    elasticsearch_server.request("DELETE", "/xq_control/_doc/%2A")


class TestElasticsearch(SinkConformance):
    """Records as documents."""

    takes = "json"

    @pytest.fixture(autouse=True)
    def _target(
        self,
        elasticsearch_server: ElasticsearchServer,
        name: str,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> None:
        self.server, self.name = elasticsearch_server, name
        monkeypatch.setattr(sweep, "FLOOR_SECONDS", 0.05)
        # A sweep waits for requests under way, which only the tests of races and kills have: 1.2 s there, else 0.06 s.
        has_requests_under_way = any(word in request.node.name for word in ("beside", "killed", "meet"))
        monkeypatch.setattr(sweep, "TIMEOUTS", 0.02 if has_requests_under_way else 0.001)

    def make_sink(self) -> ElasticsearchSink:
        index = f"{self.name}-$collection"
        return self.server.sink(self.server.url, self.server.user, self.server.password, index=index)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        found = {}
        for collection in self.collections:
            for record, document in read(self.server, f"{self.name}-{collection}").items():
                found[collection, record] = document
        return found


def read(server: ElasticsearchServer, alias: str) -> dict[bytes, bytes]:
    """Read all documents as a reader does."""
    server.request("POST", f"/{alias}/_refresh")
    status, answer = server.request("POST", f"/{alias}/_search", {"size": 10_000})
    if status == 404 or any(words in str(answer) for words in ("no_shard_available", "all shards failed")):
        return {}  # nothing was written yet: the index is not there, or was created a moment ago
    assert status == 200, answer
    return {hit["_id"].encode(): orjson.dumps(hit["_source"]) for hit in answer["hits"]["hits"]}


def puts(*ids: bytes, seq: int = 5, collection: str = "orders", document: bytes | None = b'{"n":1}') -> Operations:
    n = len(ids)
    return Operations([collection] * n, ids, [document] * n, [seq] * n, range(n))


def batch(*documents: bytes | None, seq: int = 5) -> Operations:
    n = len(documents)
    return Operations(["orders"] * n, [b"%d" % i for i in range(n)], documents, [seq] * n, range(n))


def admit(sink: ElasticsearchSink, *, queue_id: str = "q", fence: int = 1) -> ElasticsearchSink:
    sink.admit(queue_id=queue_id, store_id="s", fence=fence)
    return sink


def rejected(result: ApplyResult) -> list[int]:
    return [rejection.position for rejection in result.rejected]


def shown(error: BaseException) -> str:
    return repr(error) + "".join(traceback.format_exception(error))


SECRET = "hunter" + str(2)  # not as one literal: tracebacks show the lines of this file
Make = Callable[..., ElasticsearchSink]


@pytest.fixture
def make(elasticsearch_server: ElasticsearchServer, name: str) -> Iterator[Make]:
    opened: list[ElasticsearchSink] = []

    def make_sink(**options: Any) -> ElasticsearchSink:
        server = elasticsearch_server
        defaults = {"hosts": server.url, "username": server.user, "password": server.password, "index": name}
        opened.append(server.sink(**{**defaults, **options}))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


@pytest.fixture
def ask(elasticsearch_server: ElasticsearchServer) -> Callable[..., Any]:
    """Ask the server, and expect no error."""

    def request(method: str, path: str, body: object = None) -> Any:
        status, answer = elasticsearch_server.request(method, path, body)
        assert status < 300, answer
        return answer

    return request


@pytest.fixture
def roles(elasticsearch_server: ElasticsearchServer) -> None:
    """The users of ``ELASTICSEARCH_ROLES``."""
    if elasticsearch_server.kind == "opensearch":
        pytest.skip("roles are those of OpenSearch's security plugin, which its libraries do not have")


def waits(monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    """Let all sinks wait in another way."""
    monkeypatch.setattr(Connection, "retry", replace(Connection.retry, **how))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    waits(monkeypatch, sleep=pauses.append, random=lambda: 0.5)
    return pauses


class Overheard:
    """Stands before a sink's connection: counts bulk requests, and may answer in the place of the server."""

    def __init__(self, sink: ElasticsearchSink) -> None:
        self.bodies: list[list[bytes]] = []
        self.params: list[Mapping[str, str]] = []
        self.answers: list[Callable[[tuple[int, Any]], tuple[int, Any]]] = []
        self._ask = sink._connection.ask
        sink._connection.ask = self.ask  # type: ignore[method-assign]

    def ask(self, method: str, path: str, **arguments: Any) -> tuple[int, Any]:
        answer = self._ask(method, path, **arguments)
        if not path.endswith("/_bulk"):
            return answer
        self.bodies.append(arguments["body"].splitlines())
        self.params.append(arguments["params"])
        return self.answers.pop(0)(answer) if self.answers else answer

    @property
    def sizes(self) -> list[int]:
        """Operations of each request."""
        return [len(body) // 2 for body in self.bodies]


# What lies in the server


def test_a_record_is_a_document_with_its_rank_as_version(make, name, ask):
    sink = make()
    sink.apply(puts(b"77", seq=5))
    sink.apply(puts(b"78", seq=MAX_SEQ, document=None))
    assert ask("GET", f"/{name}/_doc/77")["_version"] == 11
    assert ask("GET", f"/{name}/_doc/77")["_source"] == {"n": 1}
    tombstone = ask("GET", f"/{name}/_doc/78")
    assert tombstone["_version"] == 2 * MAX_SEQ
    assert tombstone["_source"] == {"_xq": {"seq": MAX_SEQ, "deleted": True}}
    assert list(ask("GET", f"/{name}")) == [f"{name}-000001"]


def test_readers_see_no_tombstones_in_searches_and_counts(make, name, ask, elasticsearch_server):
    sink = make()
    sink.apply(puts(b"1", b"2", b"3"))
    sink.apply(puts(b"2", seq=6, document=None))
    assert set(read(elasticsearch_server, name)) == {b"1", b"3"}
    assert ask("GET", f"/{name}/_count")["count"] == 2


@pytest.mark.parametrize("gone", ["gc_deletes", "closed"])
def test_a_late_put_stays_away_when_the_server_has_forgotten_its_deletes(make, name, ask, gone):
    """A native delete is remembered for `index.gc_deletes`, until the index is closed: a tombstone for ever."""
    sink = make()
    sink.apply(puts(b"1", seq=5))
    if gone == "gc_deletes":
        ask("PUT", f"/{name}/_settings", {"index.gc_deletes": "0s"})
    sink.apply(puts(b"1", seq=6, document=None))
    ask("POST", f"/{name}/_refresh")
    if gone == "closed":
        ask("POST", f"/{name}/_flush")
        for what in ("_close", "_open"):
            ask("POST", f"/{name}-000001/{what}")
        ask("GET", f"/_cluster/health/{name}-000001?wait_for_status=yellow")
    else:
        time.sleep(1.5)  # the least that the server's own clock of deletes needs
        ask("POST", f"/{name}/_refresh")
    assert sink.apply(puts(b"1", seq=5)) == ApplyResult(0, 1)


def test_two_collections_with_one_index_are_one_record(make, name, ask):
    both = Operations(["a", "b"], [b"1", b"1"], [b'{"v":"old"}', b'{"v":"new"}'], [5, 6], [0, 1])
    assert make().apply(both) == ApplyResult(1, 1)
    assert ask("GET", f"/{name}/_doc/1")["_source"] == {"v": "new"}


def test_what_would_be_created_can_be_created_by_hand(make, name, elasticsearch_server):
    sink = make(create_indices=False, index="$collection")
    with pytest.raises(SinkRefused, match=name) as caught:
        sink.apply(puts(b"1", collection=name))
    text = sink.ddl(name)
    assert text[text.index(f"PUT /{name}") :] in caught.value.hint
    for request in text.split("\n\n"):
        line, _, body = request.partition("\n")
        status, answer = elasticsearch_server.request(*line.split(" "), orjson.loads(body))
        assert status == 200 or answer["error"]["type"] == "resource_already_exists_exception", answer
    assert admit(sink).apply(puts(b"1", collection=name)).written == 1


def test_create_makes_an_index_before_anything_is_written(make, name, ask):
    make(index="$collection").create(name)
    assert ask("GET", f"/{name}/_count")["count"] == 0


def test_the_users_own_template_says_the_rest(make, name, ask):
    mappings = {"properties": {"city": {"type": "keyword"}}}
    template = {"index_patterns": [f"{name}*"], "template": {"settings": {"number_of_shards": 3}, "mappings": mappings}}
    ask("PUT", f"/_index_template/{name}", template)
    try:
        assert make().apply(puts(b"1", document=b'{"city":"Oslo"}')).written == 1
        index = ask("GET", f"/{name}")[f"{name}-000001"]
    finally:
        ask("DELETE", f"/_index_template/{name}")
    assert index["settings"]["index"]["number_of_shards"] == "3"
    assert index["mappings"]["properties"]["city"] == {"type": "keyword"}
    assert "_xq" in index["mappings"]["properties"]


def test_sinks_that_create_one_index_at_once_do_not_disturb_each_other(make):
    sinks, failures = [make() for _ in range(4)], list[ExportQueueError]()

    def work(sink: ElasticsearchSink) -> None:
        try:
            admit(sink).apply(puts(b"1", b"2"))
        except ExportQueueError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_a_control_record_that_changes_meanwhile_is_read_again(make, name):
    """Another drain shows a higher fence between our look and our write: ours must not take its place."""
    sink, other = make(), make()
    sink.admit(queue_id=name, store_id="s", fence=1)
    ask, first = sink._connection.ask, iter([True])

    def disturb(method: str, path: str, **arguments: Any) -> tuple[int, Any]:
        if method == "PUT" and next(first, False):
            other.admit(queue_id=name, store_id="s", fence=9)
        return ask(method, path, **arguments)

    sink._connection.ask = disturb
    with pytest.raises(SinkBelongsToAnother, match="9"):
        sink.admit(queue_id=name, store_id="s", fence=5)


# Several requests at once


def test_two_requests_of_a_batch_are_under_way_at_once_and_their_answers_find_their_operations(make, name, ask):
    sink = make(index=f"{name}-$collection")
    sink.apply(puts(b"0005", b"1500", seq=9, document=None, collection="a"))
    barrier, bulk = threading.Barrier(2), sink._connection.ask
    meet = iter([True, True])

    def ask_together(method: str, path: str, **arguments: Any) -> tuple[int, Any]:
        if path.endswith("/_bulk") and next(meet, False):
            barrier.wait(60)  # breaks where one waits for the answer of the other
        return bulk(method, path, **arguments)

    sink._connection.ask = ask_together
    ids = [b"%04d" % n for n in range(2500)]
    documents = [b'{"n":"no number"}' if n in (7, 2400) else b'{"n":%d}' % n for n in range(2500)]
    collections = ["ab"[n % 500 == 499] for n in range(2500)]
    result = sink.apply(Operations(collections, ids, documents, [5] * 2500, range(2500)))
    assert (result.written, result.stale, rejected(result)) == (2496, 2, [7, 2400])
    ask("POST", f"/{name}-*/_refresh")
    assert ask("GET", f"/{name}-a/_count")["count"] == 2491
    assert ask("GET", f"/{name}-b/_count")["count"] == 5


def test_a_batch_counts_as_failed_once_none_of_its_requests_is_under_way(make):
    sink = make()
    sink.apply(puts(b"1"))
    bulk, numbers = sink._connection.ask, itertools.count(1)
    other_began = threading.Event()
    begun, ended = [], []

    def fail_the_first(method: str, path: str, **arguments: Any) -> tuple[int, Any]:
        if not path.endswith("/_bulk"):
            return bulk(method, path, **arguments)
        operations = len(arguments["body"].splitlines()) // 2
        if next(numbers) == 1:
            assert other_began.wait(60)
            raise SinkUnavailable("the connection broke")
        begun.append(operations)
        other_began.set()
        time.sleep(0.05)  # not a wait: the batch must not end meanwhile
        answer = bulk(method, path, **arguments)
        ended.append(operations)
        return answer

    sink._connection.ask = fail_the_first
    many = puts(*(b"%d" % n for n in range(2, 9502)))
    with pytest.raises(SinkUnavailable, match="broke"):
        sink.apply(many)
    assert len(ended) == len(begun) >= 1
    del sink._connection.ask
    again = sink.apply(many)
    assert (again.stale, again.written + again.stale) == (sum(ended), 9500), "what was written then is stale now"


def test_two_requests_whose_password_has_changed_are_both_sent_again(make, elasticsearch_server, monkeypatch):
    monkeypatch.setattr(sweep, "FLOOR_SECONDS", 1000.0)  # nothing but the two requests is asked
    password = elasticsearch_server.password
    sink = admit(make(password=lambda: password))
    sink.apply(puts(b"1"))
    sink.close()
    password, send, barrier = "old", sink._connection._send, threading.Barrier(2)

    def meet_refused(*request: Any) -> tuple[int, Any]:
        nonlocal password
        answer = send(*request)
        if answer[0] == 401:
            barrier.wait(60)
            password = elasticsearch_server.password
        return answer

    monkeypatch.setattr(sink._connection, "_send", meet_refused)
    assert sink.apply(puts(*(b"%d" % n for n in range(2, 1600)))).written == 1598


def test_a_request_that_is_sent_late_does_not_find_its_client_closed(make, elasticsearch_server, monkeypatch):
    """The other one of the batch was refused meanwhile, and has looked the password up again."""
    monkeypatch.setattr(sweep, "FLOOR_SECONDS", 1000.0)
    password = elasticsearch_server.password
    sink = admit(make(password=lambda: password))
    sink.apply(puts(b"1"))
    sink.close()
    connection, renewed, calls = sink._connection, threading.Event(), itertools.count()
    password, send, renew = "old", connection._send, connection._renew

    def send_the_second_late(*request: Any) -> tuple[int, Any]:
        if next(calls) == 1:
            assert renewed.wait(60)
        return send(*request)

    def renew_with_another(refused: Any) -> bool:
        nonlocal password
        password = elasticsearch_server.password
        found = renew(refused)
        renewed.set()
        return found

    monkeypatch.setattr(connection, "_send", send_the_second_late)
    monkeypatch.setattr(connection, "_renew", renew_with_another)
    assert sink.apply(puts(*(b"%d" % n for n in range(2, 1600)))).written == 1598
    retired = list(connection._retired)
    sink.close()
    assert (len(retired), connection._retired) == (1, [])


# Targets that cannot hold the guarantees


def definition(alias: str, **changes: Any) -> dict[str, Any]:
    """An index that is fit, but for some changes."""
    hidden = {"bool": {"must_not": [{"term": {"_xq.deleted": True}}]}}
    fields = {"_xq": {"properties": {"seq": {"type": "long"}, "deleted": {"type": "boolean"}}}}
    return {"aliases": {alias: {"filter": hidden}}, "mappings": {"properties": fields}} | changes


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"settings": {"index.translog.durability": "async"}}, "acknowledges before it writes"),
        ({"settings": {"index.default_pipeline": "mine"}}, "pipeline"),
        ({"settings": {"index.final_pipeline": "mine"}}, "pipeline"),
        ({"mappings": {}}, "does not map _xq"),
        ({"mappings": {"properties": {"_xq": {"properties": {"seq": {"type": "double"}}}}}}, "does not map _xq"),
        ({"aliases": {"ALIAS": {}}}, "its filter is null"),
        ({"aliases": {"ALIAS": {"is_write_index": False}}}, "not its write index"),
    ],
)
def test_an_index_that_cannot_hold_the_guarantees_is_refused(make, name, ask, change, problem):
    if "aliases" in change:
        change = {"aliases": {name: change["aliases"]["ALIAS"]}}
    ask("PUT", f"/{name}-mine", definition(name, **change))
    for act in (admit, lambda sink: sink.apply(puts(b"1"))):
        if problem is None:
            act(make())
            continue
        with pytest.raises(SinkConfigurationError, match=problem) as caught:
            act(make())
        assert name in caught.value.message
        assert "PUT /" in caught.value.hint


def test_an_index_instead_of_an_alias_is_refused(make, name, ask):
    ask("PUT", f"/{name}", {})
    with pytest.raises(SinkConfigurationError, match="not an alias"):
        admit(make())


def test_an_alias_of_two_indices_is_refused(make, name, ask):
    for number in (1, 2):
        ask("PUT", f"/{name}-{number}", definition(name))
    with pytest.raises(SinkConfigurationError, match="2 indices"):
        admit(make())


def test_an_index_without_its_alias_is_refused_and_left_alone(make, name, ask, no_pauses):
    ask("PUT", f"/{name}-000001", {})
    with pytest.raises(SinkConfigurationError, match="nothing is called"):
        admit(make())


def test_an_alias_that_becomes_unfit_during_a_drain_blames_no_record(make, name, ask):
    sink = admit(make())
    sink.apply(puts(b"1"))
    ask("PUT", f"/{name}-second", definition(name))
    with pytest.raises(SinkConfigurationError, match="2 indices"):
        sink.apply(puts(b"2"))


def test_an_index_that_is_deleted_during_a_drain_is_not_made_anew_by_the_server(make, name, ask):
    """The server would create it with whatever mapping, without alias: what is missing must be said instead."""
    sink = admit(make())
    sink.apply(puts(b"1"))
    ask("DELETE", f"/{name}-000001")
    with pytest.raises(SinkRefused, match="404"):
        sink.apply(puts(b"2"))
    with pytest.raises(SinkLostData, match="is gone"):
        sink.apply(puts(b"2"))
    assert ask("GET", f"/_cat/indices/{name}*?format=json") == [], "nor by the sink"


def test_an_index_that_was_deleted_or_made_anew_is_refused_until_it_is_readmitted(make, name, ask):
    admit(make()).apply(puts(b"1"))
    ask("DELETE", f"/{name}-000001")
    with pytest.raises(SinkLostData, match="is gone"):
        make().apply(puts(b"2"))
    assert ask("GET", f"/_cat/indices/{name}*?format=json") == []
    index, body = indices.definition(name)
    ask("PUT", f"/{index}", body)
    with pytest.raises(SinkLostData, match="is another one"):
        make().apply(puts(b"2"))
    sink = make()
    sink.admit(queue_id="q", store_id="s", fence=1, readmit=True)
    assert sink.apply(puts(b"1", b"2")).written == 2
    assert make().apply(puts(b"1")).stale == 1


def test_an_index_that_is_readmitted_for_one_queue_is_still_lost_to_another(make, name, ask):
    def admitted(queue_id: str, fence: int, *, readmit: bool = False) -> ElasticsearchSink:
        sink = make()
        sink.admit(queue_id=f"{name}-{queue_id}", store_id="s", fence=fence, readmit=readmit)
        return sink

    admitted("a", 1).apply(puts(b"1"))
    admitted("b", 2).apply(puts(b"2"))
    ask("DELETE", f"/{name}-000001")
    assert admitted("a", 3, readmit=True).apply(puts(b"1")).written == 1
    assert admitted("later", 4).apply(puts(b"3")).written == 1
    for fence in (5, 6):
        with pytest.raises(SinkLostData, match=f"queue '{name}-b'"):
            admitted("b", fence).apply(puts(b"2"))
    assert admitted("b", 7, readmit=True).apply(puts(b"2")).written == 1
    assert admitted("a", 8).apply(puts(b"1")).stale == 1


# One operation that fails must not take others with it


@pytest.mark.parametrize(
    ("record", "why"),
    [(b"", "empty"), (b"x" * 513, "513 bytes"), ("é".encode() * 257, "514 bytes"), (b"\xff", "UTF-8")],
)
def test_an_id_that_would_spoil_the_whole_request_is_rejected_before_it_is_sent(make, record, why):
    sink = make()
    overheard = Overheard(sink)
    result = sink.apply(puts(b"a", record, b"b"))
    assert (result.written, rejected(result)) == (2, [1])
    assert why in result.rejected[0].reason
    assert overheard.sizes == [2], "nothing but the good ones was sent, once"


def test_the_longest_id_is_taken(make):
    assert make().apply(puts(b"x" * 512, "é".encode() * 256)).written == 2


def test_a_line_break_cannot_smuggle_in_another_operation(make, name, elasticsearch_server):
    sink = make()
    sink.apply(puts(b"victim", b"2"))
    smuggled = b'{"n":1}\n{"delete":{"_index":"%b-000001","_id":"victim"}}' % name.encode()
    result = sink.apply(batch(b'{"n":2}', smuggled, b'{"n":3}', b'{\n"n":4}', seq=7))
    assert (result.written, rejected(result)) == (2, [1, 3])
    assert "line break" in result.rejected[0].reason
    assert b"victim" in read(elasticsearch_server, name)


@pytest.mark.parametrize(
    "document",
    [
        b'{"_xq":{"deleted":true}}',
        b'{"a":1,"_xq":1}',
        b'{"_xq.deleted":true}',
        b'{"\\u005fxq":{"deleted":true}}',
        b'{"a":"\\ud800","_xq":{"deleted":true}}',
        b'{"_xq":1,}',
        b'{/**/"_xq":{"deleted":true}}',
    ],
)
def test_a_document_cannot_pass_itself_off_as_a_tombstone(make, document):
    result = make().apply(batch(b'{"n":1}', document))
    assert (result.written, rejected(result)) == (1, [1])


@pytest.mark.parametrize("document", [b'{"a":"_xq"}', b'{"a":{"_xq":1}}', b'{"a":"\\u00e9"}', b' \t\r{"a":"\\ud800"}'])
def test_a_document_that_only_looks_like_it_is_taken(make, document):
    assert make().apply(batch(document)).written == 1


@pytest.mark.parametrize(
    "document", [b"", b" ", b"[]", b"5", b'"{}"', b"null", b"{", b'{"a":1,"a":2}', b'{"a":\xff}', b"{} {}"]
)
def test_what_is_no_json_object_is_rejected_alone(make, document):
    result = make().apply(batch(b'{"n":1}', document, b'{"n":2}'))
    assert (result.written, rejected(result)) == (2, [1])
    assert result.rejected[0].reason


def test_a_document_that_does_not_fit_the_mapping_is_rejected_with_the_servers_words(make):
    sink = make()
    sink.apply(batch(b'{"n":1}'))
    overheard = Overheard(sink)
    result = sink.apply(batch(b'{"n":2}', b'{"n":"many"}', b'{"n":3}', b'{"n":{"a":1}}', seq=6))
    assert (result.written, rejected(result)) == (2, [1, 3])
    assert "_parsing_exception" in result.rejected[0].reason
    assert "failed to parse field [n] of type [long]" in result.rejected[0].reason
    assert "many" in result.rejected[0].reason
    assert overheard.sizes == [4, 2], "the reasons are asked for of the refused ones only"


def test_an_older_document_takes_the_place_of_a_newer_one_that_does_not_fit(make, name, ask):
    sink = make()
    sink.apply(batch(b'{"n":1}', seq=3))
    pair = Operations(["o", "o"], [b"0", b"0"], [b'{"n":4}', b'{"n":"x"}'], [4, 5], [0, 1])
    result = sink.apply(pair)
    assert (result.written, rejected(result)) == (1, [1])
    assert ask("GET", f"/{name}/_doc/0")["_source"] == {"n": 4}


def test_a_strict_mapping_takes_tombstones_and_rejects_unknown_fields(make, name, ask):
    fields = {"n": {"type": "long"}, "_xq": definition(name)["mappings"]["properties"]["_xq"]}
    ask("PUT", f"/{name}-mine", definition(name, mappings={"dynamic": "strict", "properties": fields}))
    sink = make()
    result = sink.apply(batch(b'{"n":1}', b'{"m":1}', None))
    assert (result.written, rejected(result)) == (2, [1])
    assert "strict_dynamic_mapping_exception" in result.rejected[0].reason


def test_collections_that_no_index_can_be_called_are_rejected(make, name):
    sink = make(index=f"{name}-$collection")
    mixed = Operations(["a", "A", "b/c", "d" * 300], [b"1"] * 4, [b"{}"] * 4, [1] * 4, range(4))
    result = sink.apply(mixed)
    assert (result.written, rejected(result)) == (1, [1, 2, 3])


# Requests that are too large, busy servers, answers that do not fit


def test_a_request_that_is_too_large_is_cut_in_pieces(make, name, ask, monkeypatch):
    monkeypatch.setattr(sink_module, "REQUEST_BYTES", 1 << 30)
    sink = make()
    overheard = Overheard(sink)
    text = b'{"t":"%b"}' % (b"x" * 1_000_000)
    assert sink.apply(batch(*[text] * 12)).written == 12
    assert overheard.sizes[0] == 12
    assert len(overheard.sizes) > 3
    ask("POST", f"/{name}/_refresh")
    assert ask("GET", f"/{name}/_count")["count"] == 12


def test_a_document_that_is_too_large_alone_is_rejected_alone(make):
    huge = b'{"t":"%b"}' % (b"x" * 6_000_000)
    result = make().apply(batch(b"{}", huge, b"{}"))
    assert (result.written, rejected(result)) == (2, [1])
    assert "413" in result.rejected[0].reason


def test_a_request_that_is_refused_as_a_whole_is_halved_until_the_culprit_stands_alone(make, monkeypatch):
    """Nothing known spoils a whole request any more; should something do so, it is found."""
    sink = make()
    monkeypatch.setattr(sink_module.lines, "refuse", lambda operations, reasons: None)
    result = sink.apply(puts(*(b"%d" % n for n in range(20)), b"x" * 513))
    assert (result.written, rejected(result)) == (20, [20])
    assert "512" in result.rejected[0].reason


def busy(*positions: int) -> Callable[[tuple[int, Any]], tuple[int, Any]]:
    """Say that the server had no room for some operations."""

    def change(answer: tuple[int, Any]) -> tuple[int, Any]:
        items = answer[1]["items"]
        for i in positions:
            items[i] = {"index": {"status": 429, "error": {"type": "es_rejected_execution_exception"}}}
        return 200, {"errors": True, "items": items}

    return change


def test_only_what_a_busy_server_put_off_is_sent_again(make, no_pauses):
    sink = make()
    overheard = Overheard(sink)
    overheard.answers = [busy(1, 3), busy(0)]
    result = sink.apply(batch(*[b"{}"] * 5))
    assert overheard.sizes == [5, 2, 1]
    assert overheard.bodies[2] == overheard.bodies[0][2:4]
    assert (result.written + result.stale, result.rejected) == (5, ())
    assert len(no_pauses) == 2
    assert no_pauses[0] < no_pauses[1] <= 3


def test_a_server_that_stays_busy_is_unavailable_after_a_while(make, no_pauses):
    sink = make()
    overheard = Overheard(sink)
    overheard.answers = [busy(0)] * 50
    with pytest.raises(SinkUnavailable, match="429 es_rejected_execution_exception"):
        sink.apply(batch(b"{}", b"{}"))
    assert overheard.sizes == [2, *[1] * (len(overheard.sizes) - 1)]
    assert 5 < len(overheard.sizes) < 20
    assert 3 < sum(no_pauses) < 30


@pytest.mark.parametrize("change", ["fewer", "more"])
def test_another_number_of_answers_than_of_operations_is_no_acknowledgement(make, change):
    sink = make()
    overheard = Overheard(sink)

    def answer(given: tuple[int, Any]) -> tuple[int, Any]:
        items = given[1]["items"]
        return 200, {"errors": False, "items": items[:-1] if change == "fewer" else items + items[:1]}

    overheard.answers = [answer]
    with pytest.raises(SinkRefused, match="answers to 3 operations"):
        sink.apply(batch(b"{}", b"{}", b"{}"))


# Servers that take nothing


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("read_only_allow_delete", "429 cluster_block_exception: .*read-only-allow-delete block"),
        ("write", "403 cluster_block_exception: .*index write"),
        ("read_only", "403 cluster_block_exception: .*index read-only"),
    ],
)
def test_a_block_of_an_index_is_waited_for_and_named_in_the_servers_words(make, name, ask, block, reason, no_pauses):
    sink = admit(make())
    sink.apply(puts(b"1"))
    overheard = Overheard(sink)
    ask("PUT", f"/{name}/_settings", {f"index.blocks.{block}": True})
    for document in (b"{}", None):
        with pytest.raises(SinkUnavailable, match=reason):
            sink.apply(puts(b"2", seq=7, document=document))
    assert overheard.sizes == [1, 1] * 2, "each batch once, and one operation once more, for the server's reason"
    ask("PUT", f"/{name}-000001/_settings", {f"index.blocks.{block}": None})
    assert sink.apply(puts(b"2", seq=7)).written == 1


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("/xq_control/_settings", "index.blocks.write"),
        ("/xq_control/_settings", "index.blocks.read"),
        ("/{name}-000001/_settings", "index.blocks.metadata"),
        ("/_cluster/settings", "cluster.blocks.read_only"),
        ("/_cluster/settings", "cluster.blocks.read_only_allow_delete"),
    ],
)
def test_a_block_that_a_drain_meets_at_its_start_or_while_it_creates_an_index_is_waited_for(
    make, name, ask, path, setting, no_pauses
):
    fences = iter(range(100, 1000))
    sink = admit(make(), queue_id=name, fence=next(fences))
    sink.apply(puts(b"1"))

    def block(value: bool | None) -> None:
        body: dict[str, Any] = {setting: value}
        ask("PUT", path.format(name=name), {"persistent": body} if path.startswith("/_cluster") else body)

    block(True)
    try:
        with pytest.raises(SinkUnavailable, match="403 cluster_block_exception: .*blocked by"):
            admit(make(), queue_id=name, fence=next(fences)).apply(puts(b"2"))
        if path.startswith("/_cluster"):
            with pytest.raises(SinkUnavailable, match="403 cluster_block_exception: .*blocked by"):
                make(index=f"{name}-new").create("anything")
    finally:
        block(None)
    assert admit(make(), queue_id=name, fence=next(fences)).apply(puts(b"2")).written == 1


def test_a_closed_index_is_waited_for_until_it_is_open_and_blames_no_record(make, name, ask):
    sink = admit(make())
    sink.apply(puts(b"1"))
    ask("POST", f"/{name}-000001/_close")
    with pytest.raises(SinkUnavailable, match="index_closed_exception: closed"):
        sink.apply(puts(b"2"))
    ask("POST", f"/{name}-000001/_open")
    assert sink.apply(puts(b"2")).written == 1


def test_a_shard_that_is_nowhere_is_unavailable_and_said_in_time(make, name, ask):
    ask(
        "PUT",
        f"/{name}-mine?wait_for_active_shards=0",
        definition(name, settings={"index.routing.allocation.require.zone": "nowhere"}),
    )
    sink = make(timeout=4)
    with pytest.raises(SinkUnavailable, match="503 unavailable_shards_exception"):
        sink.apply(puts(b"1"))


@pytest.mark.parametrize("password", [SECRET, f"é€{SECRET}"])
def test_a_wrong_password_is_refused_and_not_shown(make, password):
    with pytest.raises(SinkRefused, match=r"127\.0\.0\.1.*401") as caught:
        admit(make(password=password))
    assert SECRET not in shown(caught.value)
    with pytest.raises(SinkRefused, match=r"127\.0\.0\.1.*401"):
        make(password=password).probe()


def test_a_probe_names_the_server(make, elasticsearch_server):
    assert re.match(f"{elasticsearch_server.product} at 127.0.0.1.*, status (green|yellow)", make().probe())


def test_a_probe_needs_no_rights(make, ask, name, roles):
    assert "may not see the cluster's health" in make(username="reader").probe()
    assert ask("GET", f"/{name}*") == {}, "nothing was created"


def test_a_user_without_rights_is_refused(make, name, roles):
    make().create("x")
    with pytest.raises(SinkRefused, match="403 security_exception") as caught:
        make(username="reader").admit(queue_id=name, store_id="s", fence=1)
    assert "privileges" in caught.value.hint
    with pytest.raises(SinkRefused, match="403 security_exception"):
        make(username="reader").apply(puts(b"1"))


def test_the_least_privileges_suffice(make, name, roles):
    admit(make(username="creator", index="least-$collection")).apply(puts(b"1"))
    sink = admit(make(username="writer", index="least-$collection", create_indices=False))
    assert sink.apply(puts(b"1", seq=6, document=None)).written == 1
    with pytest.raises(SinkRefused, match="403") as caught:
        make(username="writer", index="least-$collection").apply(puts(b"1", collection="other"))
    assert "PUT /least-other-000001" in caught.value.hint


def test_a_password_that_has_changed_is_asked_for_again(make, elasticsearch_server):
    answers = iter(["old", elasticsearch_server.password, "wrong", "wrong"])
    sink = admit(make(password=lambda: next(answers)))
    sink.close()
    with pytest.raises(SinkRefused, match="401"):
        sink.apply(puts(b"1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_server_that_is_not_there_is_unavailable_by_name(host, monkeypatch):
    monkeypatch.setenv("XQ_TEST", SECRET)
    options = {"hosts": f"http://{host}:{free_port()}", "username": "elastic"}
    spec = SinkSpec("elasticsearch", options, {"password": "env:XQ_TEST"})
    sink = spec.open()
    for act in (admit, lambda sink: sink.apply(puts(b"1"))):
        with pytest.raises(SinkUnavailable, match=host) as caught:
            act(sink)
        assert caught.value.transient
        assert SECRET not in shown(caught.value) + repr(sink) + repr(vars(sink))


# Sweeps


def test_what_goes_by_the_old_floor_arrives_before_tombstones_go(make, ask, elasticsearch_server, name, monkeypatch):
    """A late put has passed the old floor, and reaches the server while the sweep waits for such as it."""
    monkeypatch.setattr(sweep, "FLOOR_SECONDS", 1000.0)
    sink, late = admit(make(timeout=60)), admit(make(timeout=90))
    sink.apply(batch(None, seq=20))
    assert late.apply(batch(b'{"n":1}', seq=19)).stale == 1
    waited: list[float] = []

    def arrive(seconds: float) -> None:
        waited.append(seconds)
        for verb in ("flush", "close", "open"):  # then it remembers no deletes, only documents
            ask("POST", f"/{name}-000001/_{verb}")
        ask("GET", f"/_cluster/health/{name}-000001?wait_for_status=yellow&timeout=60s")
        assert late.apply(batch(b'{"n":1}', seq=15)).stale == 1

    waits(monkeypatch, sleep=arrive)
    assert sink.sweep(store_id="s", floor=25) == 1
    assert waited == [1000.0 + 2 * 90], "for the slowest of all sinks"
    assert read(elasticsearch_server, name) == {}


def test_a_batch_that_was_held_up_looks_at_the_floor_again_before_each_request(make, name, monkeypatch):
    now = [1000.0]
    waits(monkeypatch, clock=lambda: now[0], sleep=lambda seconds: None)
    sink, sweeper = admit(make()), admit(make())
    sink.apply(batch(None, seq=20))
    lines_of = sink_module.lines.lines_of

    def held_up(operations: Operations, *others: bytes) -> list[bytes]:
        monkeypatch.setattr(sink_module.lines, "lines_of", lines_of)
        assert sweeper.sweep(store_id="s", floor=25) == 1
        now[0] += sweep.FLOOR_SECONDS + 1
        return lines_of(operations, *others)

    monkeypatch.setattr(sink_module.lines, "lines_of", held_up)
    late = batch(b'{"n":1}', seq=15)
    with pytest.raises(SinkUnavailable, match="being swept") as caught:
        sink.apply(late)
    assert caught.value.transient
    assert sink.apply(late).stale == 1


def test_a_tombstone_that_is_put_again_as_it_is_swept_stays(make, elasticsearch_server, name, monkeypatch):
    waits(monkeypatch, sleep=lambda seconds: None)
    monkeypatch.setattr(sweep, "PAGE", 7)
    sink, other = admit(make()), admit(make())
    sink.apply(batch(*[None] * 40, seq=20))
    remove, pages = sweep._remove, []

    def put_first(*arguments: Any) -> int:
        pages.append(len(arguments[2]))
        if len(pages) == 1:
            other.apply(batch(*[b'{"n":1}'] * 40, seq=30).take([0, 13, 26]))
        return remove(*arguments)

    monkeypatch.setattr(sweep, "_remove", put_first)
    assert sink.sweep(store_id="s", floor=25) == 37
    assert (max(pages), sum(pages)) == (7, 40)
    assert len(read(elasticsearch_server, name)) == 3
    assert sink.apply(batch(*[b'{"n":2}'] * 40, seq=26)).written == 37, "a sweep leaves no version that refuses them"


def test_only_indices_of_the_template_are_swept(make, name, monkeypatch):
    waits(monkeypatch, sleep=lambda seconds: None)
    sink, other = admit(make(index=f"{name}-$collection")), admit(make(index=f"{name}other-$collection"))
    for one in (sink, other):
        one.apply(batch(None, seq=20))
    assert sink.sweep(store_id="s", floor=25) == 1
    assert other.sweep(store_id="s", floor=0) == 1


def test_a_sweep_needs_the_right_to_delete(make, elasticsearch_server, monkeypatch, roles):
    waits(monkeypatch, sleep=lambda seconds: None)
    sink = admit(make(index="least"))
    sink.apply(batch(None, None, seq=20))
    elasticsearch_server.request("POST", "/least/_refresh")
    with pytest.raises(SinkRefused, match="403"):
        make(index="least", username="writer").sweep(store_id="s", floor=25)
    assert admit(make(index="least")).apply(batch(b'{"n":1}', seq=25)).stale == 1, "the floor has been raised"
    assert make(index="least", username="sweeper").sweep(store_id="s", floor=25) == 2


class Stub:
    """A server that answers every request with the same bytes, or not at all (None), and counts them."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer, self.requests = answer, 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            client.recv(1 << 16)
            self.requests += 1
            self._open.append(client)
            if self.answer is not None:
                client.sendall(self.answer)
                client.close()

    def close(self) -> None:
        self._socket.close()
        for client in self._open:
            client.close()


def answer(status: str, body: bytes, product: bytes = b"X-Elastic-Product: Elasticsearch\r\n") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status.encode(), product, len(body)) + body


@pytest.fixture
def stub() -> Iterator[Callable[[bytes | None], Stub]]:
    opened: list[Stub] = []

    def make_stub(answer: bytes | None) -> Stub:
        opened.append(Stub(answer))
        return opened[-1]

    yield make_stub
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    "reply",
    [None, b"", answer("429 x", b"{}"), answer("502 x", b"<html>"), answer("503 x", b"{}"), answer("504 x", b"")],
)
def test_the_client_repeats_no_request_by_itself(stub, reply):
    """What was lost may have been applied; only the sink and the drain decide what is sent again."""
    server = stub(reply)
    sink = ElasticsearchSink(server.url, timeout=0.5)
    with pytest.raises(SinkUnavailable):
        admit(sink)
    assert server.requests == 1


def test_what_is_not_elasticsearch_is_refused(stub):
    with pytest.raises(SinkConfigurationError, match="neither Elasticsearch nor OpenSearch"):
        admit(ElasticsearchSink(stub(answer("200 OK", b"{}", product=b"")).url))


@pytest.mark.parametrize(
    "options",
    [
        {"index": "$id"},
        {"index": "xq_control"},
        {"index": "Upper"},
        {"hosts": "nowhere"},
        {"hosts": []},
        {"hosts": "http://u:p@nowhere.invalid:9200"},
        {"client_options": {"max_retries": 3}},
        {"client_options": {"ca_certs": "/x"}},
        {"timeout": 0},
        {"api_key": "a", "username": "b"},
        {"password": "a"},
    ],
)
def test_options_are_checked_before_anything_is_connected(options):
    with pytest.raises(SinkConfigurationError):
        ElasticsearchSink(**{"hosts": "http://nowhere.invalid:9200", **options})


# Servers that are killed, and servers that are full; one of our own


@pytest.fixture(scope="module")
def narrow_server() -> Iterator[ElasticsearchServer]:
    """A server with one thread for writes, a queue of one for it, and little room for large requests."""
    settings = {
        "node.processors": "1",
        "thread_pool.write.queue_size": "1",
        "indexing_pressure.memory.limit": "400kb",
    }
    try:
        server = ElasticsearchServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def narrow(narrow_server: ElasticsearchServer) -> Iterator[Make]:
    opened: list[ElasticsearchSink] = []
    fresh = f"n{next(_names)}"

    def make_sink(**options: Any) -> ElasticsearchSink:
        defaults = {"hosts": narrow_server.url, "username": narrow_server.user, "password": narrow_server.password}
        opened.append(ElasticsearchSink(**{**defaults, "index": fresh, **options}))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


def test_a_server_without_room_for_all_at_once_gets_everything_in_the_end(narrow, narrow_server):
    sinks, failures = [admit(narrow()) for _ in range(4)], list[BaseException]()

    def work(number: int) -> None:
        try:
            for seq in range(20):
                ids = [b"%d-%d-%d" % (number, seq, n) for n in range(100)]
                apply_patiently(sinks[number], puts(*ids, seq=seq))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not failures
    assert len(read(narrow_server, sinks[0]._template)) == 8_000


def test_a_request_for_which_there_is_no_room_is_unavailable_after_a_while(narrow, no_pauses):
    sink = admit(narrow())
    overheard = Overheard(sink)
    with pytest.raises(SinkUnavailable, match="429 es_rejected_execution_exception"):
        sink.apply(batch(*[b'{"t":"%b"}' % (b"x" * 100_000)] * 8))
    assert overheard.sizes == [8] * 8


def test_a_server_that_is_killed_amid_requests_keeps_what_it_acknowledged(narrow, narrow_server):
    sink, acknowledged = admit(narrow()), list[bytes]()
    lost: list[SinkUnavailable] = []
    last: list[bytes] = []

    def work() -> None:
        try:
            for number in itertools.count():
                last[:] = [b"%d-%d" % (number, n) for n in range(100)]
                sink.apply(puts(*last))
                acknowledged.extend(last)
        except SinkUnavailable as error:
            lost.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(acknowledged) >= 2_000, "no batch is acknowledged", seconds=120)
    narrow_server.kill()
    thread.join(90)
    assert lost
    assert lost[0].transient
    narrow_server.start()
    again = sink.apply(puts(*last))
    assert (again.written + again.stale, again.rejected) == (100, ())
    everything = [*acknowledged, *last]
    for start in range(0, len(everything), 2_000):
        part = everything[start : start + 2_000]
        assert sink.apply(puts(*part)) == ApplyResult(0, len(part)), "what was acknowledged is there, with its rank"


# -- logs --------------------------------------------------------------------------------------------------------------


def test_requests_of_the_sink_leave_no_lines_in_logs_and_those_of_others_do(
    elasticsearch_server: ElasticsearchServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = elasticsearch_server
    with caplog.at_level("INFO"):
        sink = server.sink(server.url, server.user, server.password, index=f"{name}-$collection")
        with closing(sink):
            admit(sink).apply(puts(b"1"))
        assert "elastic_transport.transport" not in {record.name for record in caplog.records}
        with closing(Transport([NodeConfig("http", server.host, server.port)])) as others:
            others.perform_request("GET", "/_cluster/health")
        assert "elastic_transport.transport" in {record.name for record in caplog.records}
