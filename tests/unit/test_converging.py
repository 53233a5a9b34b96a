"""A right exporter passes; a wrong one fails with the smallest history that shows it."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from export_queue import Delete, Entry, InvalidArgument, Put
from export_queue.testing import assert_converges

TOTALS = [
    ("anna", {"old": None, "new": 3}),
    ("ben", {"old": None, "new": 3}),
    ("anna", {"old": 3, "new": 5}),
    ("anna", {"old": 5, "new": 5}),
    ("ben", {"old": 3, "new": None}),
]
INDEX = {("by_total", "5/anna"): {}}


def by_total(entry: Entry) -> Any:
    old, new = entry.value["old"], entry.value["new"]
    if old is not None:
        yield Delete("by_total", f"{old}/{entry.key}")
    if new is not None:
        yield Put("by_total", f"{new}/{entry.key}", {})


class Remembers:
    """Knows from the entry before which record to delete: right in one process and in order only."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def export(self, entry: Entry) -> Any:
        new = entry.value["new"]
        if (old := self.last.get(entry.key)) is not None:
            yield Delete("by_total", f"{old}/{entry.key}")
        if new is not None:
            self.last[entry.key] = new
            yield Put("by_total", f"{new}/{entry.key}", {})


def failure_of(exporter: object, entries: Any = TOTALS, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_converges(exporter, entries, seed=1, **options)
    return str(raised.value)


def steps_in(message: str) -> int:
    return len(re.findall(r"^  \d+\. ", message, re.MULTILINE))


@pytest.mark.parametrize("seed", range(5))
def test_a_right_exporter_passes(seed: int) -> None:
    assert_converges(by_total, TOTALS, expected=INDEX, seed=seed)


def test_the_default_exporter_and_one_by_import_path_pass() -> None:
    assert_converges(None, [("a", 1), ("b", 2), ("a", None)], queue_id="q", expected={("q", "b"): 2})
    assert_converges(None, [(b"\xff", b"\x00"), (b"\xff", b"1")], key="bytes", value="bytes")


def test_state_between_calls_is_found_and_shown_small() -> None:
    message = failure_of(Remembers, expected=INDEX)
    assert steps_in(message) <= 2
    assert len(re.findall(r"^  #\d", message, re.MULTILINE)) <= 2
    assert "by_total/" in message
    assert "the export of #" in message
    assert "again: seed=1" in message


def test_state_in_a_closure_is_found() -> None:
    count = itertools.count(1)

    def numbered(entry: Entry) -> list[Put]:
        return [Put("c", entry.key, {"number": next(count)})]

    message = failure_of(numbered)
    assert steps_in(message) == 1
    assert "in order {" in message


def test_what_depends_on_the_order_is_found() -> None:
    seen: list[int] = []

    def newest_only(entry: Entry) -> list[Put]:
        late = bool(seen) and entry.seq < max(seen)
        seen.append(entry.seq)
        return [] if late else [Put("c", entry.key, {})]

    message = failure_of(newest_only)
    assert steps_in(message) == 1
    assert "and is now nothing" in message


def test_what_depends_on_its_batch_is_found() -> None:
    """Each entry alone is right; only one that follows another in a batch is not."""

    class Chatty:
        def __init__(self) -> None:
            self.before = ""

        def export(self, entry: Entry) -> list[Put]:
            before, self.before = self.before, entry.key
            return [Put("c", entry.key, {"after": before if before == "x" else ""})]

    message = failure_of(Chatty, [("y", 1), ("x", 1)])
    assert "#2" in message
    assert "#1" in message
    assert steps_in(message) <= 2


def test_a_forgotten_delete_is_found_by_what_is_expected() -> None:
    def forgets(entry: Entry) -> Any:
        return [operation for operation in by_total(entry) if isinstance(operation, Put)]

    assert_converges(forgets, TOTALS, seed=1)  # it converges, but not to what it should
    message = failure_of(forgets, expected=INDEX)
    assert "by_total/3/anna: expected nothing, is {}" in message
    assert "by_total/5/anna" not in message


def test_a_delete_that_is_forgotten_after_a_restart_is_found() -> None:
    class Forgets:
        def __init__(self) -> None:
            self.put: set[str] = set()

        def export(self, entry: Entry) -> Any:
            for operation in by_total(entry):
                if isinstance(operation, Put):
                    self.put.add(str(operation.id))
                    yield operation
                elif operation.id in self.put:
                    yield operation

    message = failure_of(Forgets, expected=INDEX)
    assert "in order nothing, is {}" in message
    assert steps_in(message) <= 2


def test_randomness_is_found() -> None:
    from random import Random

    generator = Random(7)
    message = failure_of(lambda entry: [Put("c", entry.key, {"n": generator.random()})], [("a", 1)])
    assert steps_in(message) == 1


def test_an_exporter_that_changes_its_value_does_no_harm() -> None:
    def pops(entry: Entry) -> list[Put]:
        return [Put("c", entry.key, {"new": entry.value.pop("new")})]

    assert_converges(pops, TOTALS)


def test_a_refusal_is_named() -> None:
    def refuses(entry: Entry) -> list[Put]:
        raise ValueError("not today")

    assert "#1 seq 1: 'a' 1\n  the exporter refuses it: #1: not today" in failure_of(refuses, [("a", 1)])


def test_a_refusal_that_comes_and_goes_is_named() -> None:
    calls = itertools.count()

    def sometimes(entry: Entry) -> list[Put]:
        if next(calls) > 6:
            raise ValueError("not today")
        return [Put("c", entry.key, {})]

    assert "refuses what it took before: #1: not today" in failure_of(sometimes, [("a", 1)])


def test_two_documents_of_one_transaction_for_one_record_are_named() -> None:
    entries = [Entry("q", "a", 1, 7), Entry("q", "b", 2, 7)]
    message = failure_of(lambda entry: [Put("c", "same", entry.value)], entries)
    assert "two entries of one transaction" in message


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="entry 2"):
        assert_converges(None, [("a", 1), "b"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="no entries"):
        assert_converges(None, [])


def test_it_is_repeated_by_its_seed() -> None:
    assert failure_of(Remembers) == failure_of(Remembers)
