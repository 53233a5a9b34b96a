"""How records lie in Elasticsearch, and what its answers mean: the pure parts of the sink."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from export_queue import FloorRecord, Operations, SinkConfigurationError, SinkRefused, SinkUnavailable
from export_queue.core.sinks import MAX_SEQ
from export_queue.core.sinks.elasticsearch import indices, lines
from export_queue.core.sinks.elasticsearch.answers import Answer, Outcome, items_of, whole
from export_queue.core.sinks.error_table import Fate


def operations(*rows: tuple[bytes, int, bytes | None]) -> Operations:
    ids, seqs, documents = ([row[i] for row in rows] for i in range(3))
    return Operations(["c"] * len(rows), ids, documents, seqs, list(range(len(rows))))


@given(st.lists(st.tuples(st.text(min_size=1).map(lambda t: t.encode("utf-8", "replace")), st.booleans())), st.data())
def test_every_operation_is_two_lines_that_say_what_it_is(pairs, data):
    seqs = [data.draw(st.integers(0, MAX_SEQ)) for _ in pairs]
    rows = [(record, seq, b'{"n":1}' if put else None) for (record, put), seq in zip(pairs, seqs, strict=True)]
    for (record, seq, document), text in zip(rows, lines.lines_of(operations(*rows)), strict=True):
        action, source, end = text.split(b"\n")
        expected = {"_id": record.decode(), "version": 2 * seq + (document is not None), "version_type": "external"}
        assert orjson.loads(action) == {"index": expected}
        assert end == b""
        if document is None:
            assert orjson.loads(source) == {"_xq": {"seq": seq, "deleted": True}}
        else:
            assert source == document


names = st.sampled_from(["_xq", "_xq.deleted", "_xq.", "_xqx", "a", "a._xq", "\u005fxq", "é"])
leaves = st.none() | st.booleans() | st.text(max_size=3)


@given(st.dictionaries(names, leaves | st.dictionaries(names, leaves, max_size=2), max_size=3), st.booleans())
@example({"_xq": {"deleted": True}}, True)
def test_only_documents_with_the_reserved_field_are_refused(fields, escaped):
    document = orjson.dumps(fields)
    if escaped:
        document = document.replace(b"_xq", b"\\u005fxq")
    is_reserved = any(name == "_xq" or name.startswith("_xq.") for name in fields)
    assert bool(lines.refuse_document(document)) == is_reserved


@pytest.mark.parametrize("name", ["", "A", "-a", "_a", ".a", "a b", "a/b", "a*", "a,b", "é", "a" * 201, "xq_control"])
def test_names_that_no_index_may_have_are_refused(name):
    assert indices.fill_collections("$collection", [name, "good"])[0] == {"good": "good"}


@pytest.mark.parametrize("template", ["$id", "$collection{x}", "xq_control", "A$collection", "a b"])
def test_templates_are_checked(template):
    with pytest.raises(SinkConfigurationError):
        indices.check_template(template)


def test_what_is_created_is_fit():
    name, body = indices.definition("orders")
    assert indices.misfits("orders", {name: body}) == []


def test_a_data_stream_is_refused():
    found = {".ds-orders-000001": {"aliases": {}, "mappings": {}, "settings": {}, "data_stream": "orders"}}
    (problem,) = indices.misfits("orders", found)
    assert "data stream" in problem


@pytest.mark.parametrize("mode", ["time_series", "logsdb"])
def test_modes_in_which_records_cannot_be_replaced_are_refused(mode):
    name, body = indices.definition("orders")
    (problem,) = indices.misfits("orders", {name: {**body, "settings": {"index": {"mode": mode}}}})
    assert mode in problem


TERM = {"term": {"_xq.deleted": True}}


@pytest.mark.parametrize(
    ("about", "fits"),
    [
        ({"filter": {"bool": {"must_not": {"term": {"_xq.deleted": {"value": "true"}}}}}}, True),
        ({"filter": {"bool": {"must_not": [TERM]}}, "is_write_index": True}, True),
        ({"filter": {"bool": {"must_not": [TERM, {"term": {"hidden": True}}]}}}, False),
        ({"filter": {"bool": {"must_not": [TERM], "filter": [{"term": {"a": 1}}]}}}, False),
        ({"filter": {"bool": {"must_not": [{"term": {"_xq.deleted": False}}]}}}, False),
        ({"filter": {"bool": {"must": [TERM]}}}, False),
        ({"filter": TERM}, False),
        ({}, False),
        ({"filter": {"bool": {"must_not": [TERM]}}, "index_routing": "1", "search_routing": "1"}, False),
        ({"filter": {"bool": {"must_not": [TERM]}}, "search_routing": "1"}, False),
    ],
)
def test_an_alias_hides_tombstones_and_nothing_else(about, fits):
    name, body = indices.definition("orders")
    problems = indices.misfits("orders", {name: {**body, "aliases": {"orders": about}}})
    assert len(problems) == (not fits)


def test_an_index_that_wants_a_routing_is_refused():
    name, body = indices.definition("orders")
    (problem,) = indices.misfits(
        "orders", {name: {**body, "mappings": {**body["mappings"], "_routing": {"required": True}}}}
    )
    assert "routing" in problem


@pytest.mark.parametrize(
    ("status", "kind", "meaning"),
    [
        (200, "", Outcome.WRITTEN),
        (201, "", Outcome.WRITTEN),
        (409, "version_conflict_engine_exception", Outcome.STALE),
        (409, "something_else", Fate.REFUSED),
        (429, "es_rejected_execution_exception", Fate.AGAIN),
        (429, "circuit_breaking_exception", Fate.AGAIN),
        (429, "cluster_block_exception", Fate.LATER),
        (403, "cluster_block_exception", Fate.LATER),
        (403, "security_exception", Fate.REFUSED),
        (404, "index_not_found_exception", Fate.REFUSED),
        (400, "index_closed_exception", Fate.LATER),
        (400, "document_parsing_exception", Fate.REJECTED),
        (400, "illegal_argument_exception", Fate.REJECTED),
        (400, "media_type_header_exception", Fate.CONFIGURATION),
        (413, "", Outcome.TOO_LARGE),
        (503, "unavailable_shards_exception", Fate.LATER),
        (500, "", Fate.LATER),
        (302, "", Fate.REFUSED),
    ],
)
def test_answers_are_classed_by_status_and_type(status, kind, meaning):
    assert Answer(status, kind).meaning is meaning


def test_only_what_may_pass_is_transient():
    errors = {
        meaning: Answer(status).explain("x")
        for meaning, status in (
            (Fate.AGAIN, 429),
            (Fate.LATER, 503),
            (Fate.REFUSED, 403),
            (Fate.CONFIGURATION, 406),
        )
    }
    assert isinstance(errors[Fate.AGAIN], SinkUnavailable)
    assert isinstance(errors[Fate.LATER], SinkUnavailable)
    assert isinstance(errors[Fate.REFUSED], SinkRefused)
    assert isinstance(errors[Fate.CONFIGURATION], SinkConfigurationError)


@pytest.mark.parametrize("body", [None, "<html>", b"", {}, {"error": "text"}, {"error": None}])
def test_answers_without_a_type_are_read_too(body):
    assert whole(503, body).meaning is Fate.LATER


def test_an_item_keeps_the_servers_words():
    error = {"type": "document_parsing_exception", "reason": "failed", "caused_by": {"reason": "because"}}
    found = items_of(
        {"errors": True, "items": [{"index": {"status": 201}}, {"index": {"status": 400, "error": error}}]}
    )
    assert [answer.meaning for answer in found] == [Outcome.WRITTEN, Fate.REJECTED]
    assert str(found[1]) == "400 document_parsing_exception: failed: because"


@pytest.mark.parametrize("items", [None, [], [None], [{}], [{"index": {}}], [{"index": {"status": "200"}}], ["x"]])
def test_items_that_cannot_be_read_are_no_answers(items):
    assert items_of({"errors": True, "items": items}) == []


HIDES = {"filter": {"bool": {"must_not": [{"term": {"_xq.deleted": True}}]}}}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("orders", ["internal-7"]),
        ("daily-$collection", ["daily-a-000001", "daily-b-000001"]),
        ("$collection", ["daily-a-000001", "daily-b-000001", "internal-7"]),
        ("order", []),
    ],
)
def test_a_sweep_takes_what_its_template_names_and_what_hides_tombstones(template, wanted):
    found = {
        "daily-a-000001": {"aliases": {"daily-a": HIDES}},
        "daily-b-000001": {"aliases": {"all": {}, "daily-b": HIDES}},
        "daily-c": {"aliases": {"daily-c-all": {"filter": {"term": {"open": True}}}}},
        "daily-d": {"aliases": {}},
        "internal-7": {"aliases": {"orders": HIDES}},
    }
    assert indices.behind(template, found) == wanted


def test_the_record_of_a_cluster_comes_back_as_it_was():
    record = FloorRecord(frozenset({"a", "b"}), (1 << 62) - 1)
    whole = indices.WholeRecord(record, 60_000, {"orders": "one"})
    assert indices.read_whole(orjson.loads(orjson.dumps(indices.write_whole(whole)))) == whole
