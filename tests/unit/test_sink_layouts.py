"""How records lie in Redis and in SQL tables: the pure parts of both sinks."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from export_queue import Operations, SinkConfigurationError
from export_queue.core.sinks import MAX_SEQ, json_texts, naming
from export_queue.core.sinks.elasticsearch import indices
from export_queue.core.sinks.json_texts import numbers_in, texts_of
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.packing import word_of
from export_queue.core.sinks.redis.targets import TARGETS, fields_of
from export_queue.core.sinks.sql import statements, tables
from export_queue.core.sinks.sql.rows import Limits, rows_of
from export_queue.core.sinks.sql.tables import Column, Contents, Key, Table, Unfit
from export_queue.core.sinks.sql.values import as_literal, as_native, as_text

LIMITS = Limits(id_bytes=20, convert=as_text)


def operations(*rows: tuple[bytes, int, bytes | None], collection: str = "c:$id") -> Operations:
    ids, seqs, documents = ([row[i] for row in rows] for i in range(3))
    return Operations([collection] * len(rows), ids, documents, seqs, list(range(len(rows))))


# Redis


@given(st.integers(0, MAX_SEQ * 2 + 1), st.integers(0, MAX_SEQ * 2 + 1))
@example(1 << 53, (1 << 53) + 1)
def test_ranks_as_text_are_ordered_as_numbers(one, other):
    first, second = layout.rank_texts([one, other])
    assert (first < second) == (one < other)
    assert len(first) == len(second) == 20


@pytest.mark.parametrize(
    "template",
    [
        *("$collection", "$id$id", "$key:$id", "xq:$id", "", "$collection:$seq:$id", "$collection$collection:$id"),
        *("$", "$id:$", "$id:$ ", "$9$id", "${id", "${}:$id", "${id!r}", "$$id", "${id}}${id}", "$ID", "$id_"),
    ],
)
def test_templates_without_one_id_or_with_our_keys_are_refused(template):
    with pytest.raises(SinkConfigurationError, match="template"):
        layout.check_template(template)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        *(("customer:{id}", "customer:$id"), ("$collection:{id}", "$collection:$id"), ("{id}_a", "${id}_a")),
        *(("customer:{{{id}}}:status", "customer:{$id}:status"), ("{{t}}{id}", "{t}$id")),
        *(("{collection}:$id", "$collection:$id"), ("$id:{collection}", "$id:$collection"), ("$$[{id}]", "$$[$id]")),
    ],
)
def test_a_template_with_braces_is_answered_with_its_right_spelling(template, shown):
    with pytest.raises(SinkConfigurationError, match="a field is written") as refused:
        layout.check_template(template)
    assert refused.value.hint == f"write {shown}"
    layout.check_template(shown)


@pytest.mark.parametrize("check", [tables.check_template, indices.check_template])
def test_a_name_with_braces_is_answered_with_its_right_spelling(check):
    with pytest.raises(SinkConfigurationError, match="a field is written") as refused:
        check("copy_{collection}")
    assert refused.value.hint == "write copy_$collection"


@pytest.mark.parametrize(
    ("template", "key"),
    [
        *(("{$id}:a", b"{7}:a"), ("{{t}}$id", b"{{t}}7"), ("a$id", b"a7"), ("}$id", b"}7"), ("${id}a", b"7a")),
        *(
            ("$$$id", b"$7"),
            ("$$id:$id", b"$id:7"),
            ("$id$$", b"7$"),
            ("$$${id}$$$$", b"$7$$"),
            ("$id\u00e9", "7\u00e9".encode()),
        ),
    ],
)
def test_a_brace_in_a_template_is_text_and_two_dollar_signs_are_one(template, key):
    assert layout.keys_of([layout.check_template(template)], [b"7"]) == [key]


def test_two_spellings_of_a_template_are_one():
    assert layout.check_template("${collection}:${id}") == layout.check_template("$collection:$id") == "$collection:$id"
    assert tables.check_template("a_${collection}") == "a_$collection"


def test_a_collection_in_a_template_is_text():
    filled, _ = layout.fill_collections(layout.check_template("$$$collection:${id}_a"), ["id", "b"])
    assert layout.keys_of([filled["id"], filled["b"]], [b"7", b"$id"]) == [b"$id:7_a", b"$b:$id_a"]


_TEXTS = st.text("a_$:{}\u00e9", max_size=4)


@given(_TEXTS, _TEXTS, _TEXTS, st.booleans())
def test_a_template_means_what_is_written(before, between, after, is_first):
    fields = ["id", "collection"] if is_first else ["collection", "id"]
    template = naming.written([(before, fields[0]), (f":{between}", fields[1]), (after, "")])
    assert naming.written(naming.parts_of(template)) == template
    filled, _ = layout.fill_collections(layout.check_template(template), ["orders"])
    named = {"id": "7", "collection": "orders"}
    key = f"{before}{named[fields[0]]}:{between}{named[fields[1]]}{after}"
    assert layout.keys_of([filled["orders"]], [b"7"]) == [key.encode()]


@given(st.lists(st.binary(max_size=12), unique=True))
@example([b"{a}1", b"{a}2", b"{}", b"{}{a}", b"}{a}"])
def test_in_a_cluster_ranks_lie_in_the_slot_of_their_records(keys):
    groups = layout.group_by_slot(keys, b"xq:rank:{%b}")
    assert sorted(i for group in groups.values() for i in group) == list(range(len(keys)))
    for name, group in groups.items():
        assert {key_slot(keys[i]) for i in group} == {key_slot(name)}


def test_each_slot_has_a_tag_of_its_own():
    assert [key_slot(b"xq:rank:{%b}" % tag) for tag in layout.slot_tags()] == list(range(16384))


def test_collections_that_could_make_two_records_one_key_are_refused():
    filled, refused = layout.fill_collections("$collection:$id", ["a", "a:b", "", "$id", "é"])
    assert filled == {"a": "a:$id"}
    assert set(refused) == {"a:b", "", "$id", "é"}


@pytest.mark.parametrize("between", ["", "_", "-", ".", "__a.-9"])
@pytest.mark.parametrize("template", ["${collection}%s$id", "${id}%s$collection", "{${collection}%s$id}"])
def test_a_template_whose_keys_cannot_be_parted_again_is_refused(template, between):
    with pytest.raises(SinkConfigurationError, match="two records could have one key"):
        layout.check_template(template % between)


_NAMES = st.text("ab_.-", min_size=1, max_size=4)


@pytest.mark.parametrize("template", ["$collection:$id", "a${id}_é-${collection}b", "{$collection}$id"])
@given(st.lists(st.tuples(_NAMES, st.text("ab_.-:é}", max_size=5)), unique=True, min_size=2, max_size=20))
def test_a_template_that_is_taken_gives_each_record_a_key_of_its_own(template, records):
    filled, _ = layout.fill_collections(layout.check_template(template), [name for name, _ in records])
    keys = layout.keys_of([filled[name] for name, _ in records], [record.encode() for _, record in records])
    assert len(set(keys)) == len(records)
    packed = layout.packed_keys_of([filled[name] for name, _ in records], [record.encode() for _, record in records])
    assert list(map(word_of, packed)) == keys


def test_a_template_without_collection_takes_any():
    filled, refused = layout.fill_collections("k:$id:v", ["a:b", ""])
    assert (set(filled.values()), refused) == ({"k:$id:v"}, {})
    assert layout.keys_of(["k:$id:v", "$id"], [b"\xff", b"$id"]) == [b"k:\xff:v", b"$id"]
    alike = layout.packed_keys_of(["k:$id:v"] * 2, [b"\xff", b"longer"])
    assert list(map(word_of, alike)) == [b"k:\xff:v", b"k:longer:v"]


@pytest.mark.parametrize(
    ("target", "template", "record", "reason"),
    [
        ("string", "$id", b"xq:control", "the sink's own"),
        ("string", "x$id", b"q:control", "the sink's own"),
        ("set", "$id", b"xq:control/m", "the sink's own"),
        ("set", "c:$id", b"no member", "<set>/<member>"),
        ("set", "c:$id", b"a\0b/c", "NUL"),
    ],
)
def test_records_that_cannot_be_are_refused(target, template, record, reason):
    reasons = {}
    TARGETS[target].refuse(operations((record, 1, b""), collection=template), reasons)
    assert reason in reasons[0]


def test_members_keep_slashes_and_their_ranks_stand_under_key_nul_member():
    records = TARGETS["set"].locate(operations((b"12/a/b", 1, b"")))
    columns = (records.keys, records.members, records.fields)
    assert [[word_of(word) for word in column] for column in columns] == [[b"c:12"], [b"a/b"], [b"c:12\0a/b"]]


# SQL


@pytest.mark.parametrize(
    "name", ["", "a" * 59, "xq_control", "sqlite_master", "PG_class", "orders_live", 'a"b', "a b", "-a", "é"]
)
def test_names_that_no_table_may_have_are_refused(name):
    assert tables.refuse_table(name)
    assert tables.fill_collections("$collection", [name, "good"], fold=False)[0] == {"good": "good"}


@pytest.mark.parametrize("name", ["orders", "daily-orders", "a.b", "_x", "2026", "A" * 58])
def test_names_of_queues_are_names_of_tables(name):
    assert tables.refuse_table(name) is None


@pytest.mark.parametrize(
    "template", ["$id", "${collection}_$x", "xq_$collection", "${collection}_live", "${collection}$", "a b"]
)
def test_templates_of_tables_are_checked(template):
    with pytest.raises(SinkConfigurationError):
        tables.check_template(template)


@pytest.mark.parametrize(
    ("columns", "document"),
    [
        ([], "text"),
        (["id"], "text"),
        (["_RANK"], "text"),
        (["a b"], "text"),
        ({"a": "blob"}, "text"),
        (["a", "a"], "text"),
        (None, "xml"),
    ],
)
def test_columns_are_checked(columns, document):
    with pytest.raises(SinkConfigurationError):
        Contents.of(columns, document)


documents = st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)


def as_tuples(rows):
    """Write rows as people read them: key, values, rank, tombstone mark."""
    return list(zip(*rows.keys, *rows.values, rows.ranks, rows.deleted, strict=True))


@given(
    st.lists(
        st.tuples(st.binary(max_size=24) | st.just(b"good"), documents), unique_by=lambda pair: pair[0], max_size=6
    )
)
def test_quick_rows_are_those_of_the_careful_way(pairs):
    batch = operations(*((record, 1, document) for record, document in pairs))
    text = Contents.of(None, "text")
    rows, reasons = rows_of(batch, text, LIMITS)
    one_by_one = [rows_of(batch.take([i]), text, LIMITS) for i in range(len(pairs))]
    assert as_tuples(rows) == sorted(row for found, _ in one_by_one for row in as_tuples(found))
    assert [batch.ids[i] for i in rows.positions] == [key.encode() for key in rows.keys[0]]
    assert reasons == {i: unfit[0] for i, (_, unfit) in enumerate(one_by_one) if unfit}
    for key, document, *_ in as_tuples(rows):
        assert "\0" not in key + (document or "")


@given(
    st.lists(
        st.tuples(st.binary(max_size=24) | st.just(b"good"), documents), unique_by=lambda pair: pair[0], max_size=6
    )
)
def test_rows_that_keep_their_bytes_are_those_of_text(pairs):
    batch = operations(*((record, 1, document) for record, document in pairs))
    text, encoded = Contents.of(None, "text"), replace(LIMITS, encoded=True)
    rows, reasons = rows_of(batch, text, encoded)
    expected, expected_reasons = rows_of(batch, text, LIMITS)
    decoded = [
        (key.decode(), None if document is None else document.decode(), *marks)
        for key, document, *marks in as_tuples(rows)
    ]
    assert (decoded, reasons) == (as_tuples(expected), expected_reasons)


def test_rows_are_parted_by_rank_and_by_what_becomes_of_them():
    rows, _ = rows_of(operations((b"b", 1, b"x"), (b"a", 2, None), (b"c", 3, b"y")), Contents.of(None, "text"), LIMITS)
    table = Table("orders", Contents.of(None, "text"), ranked=False)
    assert [key for (key,) in zip(*rows.above(3).keys, strict=True)] == ["a", "c"]
    assert list(zip(*rows.puts().columns(table), strict=True)) == [("b", "x"), ("c", "y")]
    assert (rows.deletes().keys, rows.deletes().positions) == ((["a"],), [1])
    assert rows.part(range(1, 3)).positions == [0, 2]


FIELDS = {"n": "integer", "t": "text", "j": "json", "b": "boolean"}


@pytest.mark.parametrize(
    ("document", "textual", "native"),
    [
        (b'{"n":1,"t":"x","j":{"a":1},"b":true}', ("1", "x", '{"a":1}', "true"), (1, "x", '{"a":1}', True)),
        (b'{"t":5,"j":"x","more":1}', (None, "5", '"x"', None), (None, "5", '"x"', None)),
        (b'{"t":true,"n":1.5}', ("1.5", "true", None, None), (1.5, "true", None, None)),
    ],
)
def test_fields_become_columns(document, textual, native):
    contents = Contents.of(FIELDS, "text")
    for limits, values in ((LIMITS, textual), (Limits(id_bytes=9, convert=as_native), native)):
        rows, reasons = rows_of(operations((b"a", 3, document)), contents, limits)
        assert (as_tuples(rows), reasons) == ([("a", *values, 7, False)], {})


@pytest.mark.parametrize(
    "document", [b"[]", b"", b"{", b"5", b'{"t":"\\u0000"}', b'{"t":"\\ud800"}', b'{"n":18446744073709551615}']
)
def test_documents_that_have_no_such_fields_are_unfit(document):
    contents = Contents.of(FIELDS, "text")
    rows, reasons = rows_of(operations((b"a", 3, document)), contents, Limits(id_bytes=9, convert=as_native))
    assert len(rows) == 0
    assert list(reasons) == [0]


def test_a_tombstone_has_no_values():
    rows, _ = rows_of(operations((b"a", 3, None)), Contents.of(FIELDS, "text"), LIMITS)
    assert as_tuples(rows) == [("a", None, None, None, None, 6, True)]


def test_the_guard_is_strict_and_writes_every_column():
    table = Table("orders", Contents((Column("n"),), whole=False))
    for statement in (statements.upsert_values(table), statements.upsert_arrays(table, {})):
        assert 'WHERE COALESCE(t."_rank", -1) < excluded."_rank"' in statement
        assert 'SET "n" = excluded."n", "_rank" = excluded."_rank", "_deleted" = excluded."_deleted"' in statement


def test_documents_survive_as_json_text():
    rows, _ = rows_of(operations((b"a", 3, orjson.dumps({"j": ["é"]}))), Contents.of({"j": "json"}, "text"), LIMITS)
    assert orjson.loads(rows.values[0][0]) == ["é"]


# Numbers

finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=9) | finite
objects = st.recursive(scalars, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3))


@given(st.dictionaries(st.text(max_size=5), objects, max_size=5), st.sampled_from([None, 1]), st.booleans())
@example({'a"\\': '\\"', "]": ["}", {"[": "\\"}]}, None, True)
def test_the_texts_of_an_object_are_the_very_ones(fields, indent, ascii_only):
    text = json.dumps(fields, indent=indent, ensure_ascii=ascii_only)
    assert {name: json.loads(found) for name, found in texts_of(text.encode()).items()} == fields


def test_the_texts_of_an_object_keep_every_digit():
    deep = "[" * 300 + "1.10" + "]" * 300
    assert texts_of(f'{{"a": 0.1e+5 ,"b":{deep}, "a":-1}}'.encode()) == {"a": "-1", "b": deep}
    assert list(numbers_in('{"1":[-1.50e-3,"2",true,{"x\\"3":4}]}')) == ["-1.50e-3", "4"]


def test_an_object_that_is_nested_too_deeply_is_refused(monkeypatch):
    document = b'{"a":' + b"[" * 1000 + b"1.10" + b"]" * 1000 + b"}"  # where Python stops depends on its version
    monkeypatch.setattr(json_texts, "_DECODER", mock.Mock(decode=mock.Mock(side_effect=RecursionError)))
    with pytest.raises(ValueError, match="nested too deeply"):
        fields_of(document)
    (reason,) = rows_of(operations((b"a", 3, document)), Contents.of(["a"], "text", Key.of("id")), LIMITS)[1].values()
    assert "nested too deeply" in reason


@pytest.mark.parametrize("number", ["12345678901234567.89", "18446744073709551616", "-9223372036854775809"])
def test_json_that_a_database_keeps_as_doubles_is_refused_where_it_would_change(number):
    column = Column("j", "json", doubles="json")
    for taken in ("0.1", "18446744073709551615", "1e300", "-9223372036854775808", f'"{number}"'):
        assert as_literal({"a": 1}, f'{{"a":{taken}}}', column)
    with pytest.raises(Unfit, match="field 'j' is"):
        as_literal({"a": 1}, f'{{"a":[{number}]}}', column)
    whole = Contents((column,), whole=True)
    batch = operations((b"a", 3, b"[%s]" % number.encode()))
    assert list(rows_of(batch, whole, Limits(id_bytes=9, convert=as_literal))[1]) == [0]
