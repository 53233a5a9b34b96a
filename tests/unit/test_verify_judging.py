"""Whether a difference is one: the table of verdicts."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import pytest

from export_queue.core.sinks import StoredRecords
from export_queue.core.verify.judging import ABSENT, Loads, Sighting, Verdict, Version, judge
from export_queue.core.verify.rows import digest_of
from export_queue.core.verify.spool import Spool

CUT, NEWEST = 100, 200
A, B = b"a", b"b"


def put(seq: int, digest: bytes = A) -> Version:
    return Version(2 * seq + 1, digest)


def gone(seq: int) -> Version:
    return Version(2 * seq, None)


def verdict(expected: Version | None, found: Version, **others: Any) -> Verdict:
    return judge(Sighting(**{"expected": expected, "found": found, "cut": CUT, "newest": NEWEST, "floor": 0} | others))


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [
        (put(5), put(5), "same"),
        (gone(5), gone(5), "same"),
        (None, gone(5), "same"),  # the source forgets tombstones
        (None, ABSENT, "same"),
        (put(5), ABSENT, "missing"),
        (put(5), Version(11, None), "missing"),  # its rank is there, its document is not
        (gone(5), ABSENT, "missing"),
        (None, put(5), "extra"),
        (None, Version(-1, A), "extra"),
        (gone(5), Version(10, A), "extra"),
        (put(5), put(5, B), "different"),
        (put(5), put(4), "stale"),
        (put(5), gone(5), "stale"),
        (put(5), Version(-1, A), "stale"),
        (gone(5), put(4), "stale"),
        (put(5), put(6), "ahead"),
        (put(5), gone(100), "ahead"),
        (put(5), put(101), "younger"),
        (None, put(200), "younger"),
        (put(5), put(201), "ahead"),
        (None, put(201), "ahead"),
    ],
)
def test_each_difference_has_its_name(expected: Version | None, found: Version, wanted: Verdict) -> None:
    assert verdict(expected, found) == wanted


def test_a_pending_or_dead_entry_explains_a_difference_unless_it_is_older_than_the_expected_one() -> None:
    for found in (ABSENT, put(4), put(5, B), put(101)):
        assert verdict(put(5), found, queued=400, dead=11) == "queued"
        assert verdict(put(5), found, dead=11) == "dead"
    for found in (ABSENT, put(4)):
        assert verdict(put(5), found, queued=11) == "queued"
    assert verdict(put(5), put(4), queued=10, dead=9) == "stale", "the newer entry was acknowledged"
    assert verdict(None, put(5), queued=12) == "queued"


def test_a_pending_entry_that_the_record_has_already_explains_nothing() -> None:
    """Its drain was killed before it acknowledged; to deliver it again changes nothing."""
    assert verdict(put(5), put(5, B), queued=11) == "different"
    assert verdict(put(5), Version(11, None), queued=11) == "missing"
    assert verdict(None, put(5), queued=11) == "extra"
    assert verdict(put(5), put(101), queued=203) == "younger"
    assert verdict(put(5), Version(-1, B), queued=11, is_ranked=False, is_confirmed=True) == "queued"


def test_nothing_explains_a_rank_above_every_entry() -> None:
    assert verdict(put(5), put(201), queued=1 << 60, dead=1 << 60) == "ahead"


def test_a_swept_tombstone_may_be_gone() -> None:
    assert verdict(gone(5), ABSENT, floor=5) == "same"
    assert verdict(gone(5), ABSENT, floor=4) == "missing"
    assert verdict(put(5), ABSENT, floor=9) == "missing"


def test_a_document_that_expires_may_be_gone_but_not_another_one() -> None:
    assert verdict(put(5), Version(11, None), expires=True) == "same"
    assert verdict(put(5), put(5, B), expires=True) == "different"
    assert verdict(put(5), put(4), expires=True) == "stale"


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [(put(0), Version(-1, B), "different"), (put(0), ABSENT, "missing"), (None, Version(-1, B), "extra")],
)
def test_without_ranks_a_difference_must_be_seen_twice(
    expected: Version | None, found: Version, wanted: Verdict
) -> None:
    assert verdict(expected, found, is_ranked=False) == "younger"
    assert verdict(expected, found, is_ranked=False, is_confirmed=True) == wanted
    assert verdict(expected, found, is_ranked=False, is_confirmed=True, queued=3) == "queued"


def test_without_ranks_only_documents_are_compared() -> None:
    assert verdict(put(0), Version(-1, A), is_ranked=False) == "same"
    assert verdict(put(0), put(99), is_ranked=False) == "same"
    assert verdict(gone(0), ABSENT, is_ranked=False) == "same"
    assert verdict(gone(0), gone(99), is_ranked=False) == "same"


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [
        (put(5), put(50), "same"),
        (put(5), put(5), "same"),
        (put(5), put(50, B), "different"),
        (put(5), gone(50), "missing"),
        (put(5), put(4), "stale"),
        (put(5), put(49), "ahead"),
        (put(51), put(50), "stale"),
        (put(5), ABSENT, "missing"),
        (gone(5), put(50), "extra"),
        (None, put(50), "extra"),
        (gone(29), ABSENT, "same"),
        (gone(31), ABSENT, "missing"),
    ],
)
def test_a_first_load_of_the_reader_stands_for_older_entries(
    expected: Version | None, found: Version, wanted: Verdict
) -> None:
    assert verdict(expected, found, loads=Loads(of_reader=50, began=30)) == wanted


def test_a_first_load_that_is_younger_than_the_cut_may_have_other_documents() -> None:
    loads = Loads(of_reader=CUT + 1)
    assert verdict(put(5), put(CUT + 1), loads=loads) == "same"
    assert verdict(put(5), put(CUT + 1, B), loads=loads) == "younger"
    assert verdict(None, put(CUT + 1), loads=loads) == "younger"


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [
        (put(50), put(5), "same"),
        (put(50), put(50), "same"),
        (put(50), put(5, B), "different"),
        (put(50), gone(5), "missing"),
        (put(50), ABSENT, "missing"),
        (put(50), Version(-1, A), "stale"),
        (put(50), put(51), "ahead"),
        (put(49), put(5), "stale"),
        (gone(50), ABSENT, "same"),
        (gone(50), put(5), "extra"),
    ],
)
def test_a_first_load_of_the_source_stands_for_older_entries(
    expected: Version, found: Version, wanted: Verdict
) -> None:
    assert verdict(expected, found, loads=Loads(of_source=50)) == wanted


def test_an_older_pending_entry_explains_what_a_first_load_of_the_source_says() -> None:
    loads = Loads(of_source=50)
    assert verdict(put(50), put(4, B), loads=loads, queued=11) == "queued"
    assert verdict(put(50), put(4, B), loads=loads, dead=11) == "dead"
    assert verdict(put(50), put(6, B), loads=loads, queued=11) == "different", "it is older than the record"
    assert verdict(put(49), put(4, B), loads=loads, queued=11) == "stale"


def test_what_is_no_candidate_is_the_same() -> None:
    """The first pass leaves out only what the table of verdicts calls the same."""
    ranks, seqs = (-1, 6, 7, 8, 9, 12, 13), (0, 3, 4, 6)
    versions = [(rank, document) for rank, document in product(ranks, (None, b"a", b"b"))]
    left_out = 0
    for loads in [Loads(of_reader=r, of_source=s, began=b) for r, s, b in product(seqs, seqs, (0, 4))]:
        for is_ranked in (True, False):
            with contextlib.closing(Spool()) as spool:
                spool.is_ranked = is_ranked
                cases = list(product(versions[3:], [*versions, None]))
                expected_rows = [(b"%d" % number, *one) for number, (one, _) in enumerate(cases)]
                found_rows = [(b"%d" % number, *one) for number, (_, one) in enumerate(cases) if one is not None]
                expected_page, found_page = (
                    StoredRecords(["t"] * len(rows), *map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]
                    for rows in (expected_rows, found_rows)
                )
                spool.add_expected(expected_page, expected_page.ids)
                spool.add_found(found_page)
                spool.compare(copies=True, loads=loads)
                candidates = {int(one.id) for page in spool.pages() for one in page}
            for number, ((rank, document), found) in enumerate(cases):
                if number not in candidates:
                    left_out += 1
                    expected = Version(rank, digest_of(document))
                    seen = ABSENT if found is None else Version(found[0], digest_of(found[1]))
                    said = verdict(expected, seen, loads=loads, is_ranked=is_ranked)
                    assert said == "same", (expected, seen, loads, is_ranked)
    assert left_out > 1000
