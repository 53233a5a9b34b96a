"""Whether a difference is one: the table of verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from export_queue.core.verify.judging import ABSENT, Sighting, Verdict, Version, judge

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
        assert verdict(put(5), found, queued=11) == "queued"
        assert verdict(put(5), found, queued=400, dead=11) == "queued"
        assert verdict(put(5), found, dead=11) == "dead"
    assert verdict(put(5), put(4), queued=10, dead=9) == "stale", "the newer entry was acknowledged"
    assert verdict(None, put(5), queued=3) == "queued"


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
