"""Which records of two sides are compared by their rows."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from export_queue.core.sinks import StoredRecords
from export_queue.core.verify import shares, sides
from export_queue.core.verify.spool import Spool

Record = tuple[str, bytes, int, bytes | None]
LIMITS = {"in memory": (1 << 20, 1 << 18), "in files": (20, 1 << 18), "too many": (20, 5)}


def candidates(
    expected: Sequence[Record], found: Sequence[Record], *, is_ranked: bool = True, page: int = 7
) -> set[tuple[str, bytes]]:
    """Return the records that are checked one by one, of records that come in small pages."""
    with contextlib.closing(Spool()) as spool:
        spool.is_ranked = is_ranked
        for start in range(0, len(expected), page):
            records = StoredRecords(*map(list, zip(*expected[start : start + page], strict=True)))  # type: ignore[arg-type]
            spool.add_expected(records, records.ids)
        for start in range(0, len(found), page):
            spool.add_found(StoredRecords(*map(list, zip(*found[start : start + page], strict=True))))  # type: ignore[arg-type]
        spool.compare(copies=True)
        return {(spool.target(one.target), one.id) for rows in spool.pages() for one in rows}


def differing(expected: Sequence[Record], found: Sequence[Record], *, is_ranked: bool) -> set[tuple[str, bytes]]:
    """Return the records whose versions are not the same on both sides, except tombstones that nobody expects."""
    versions: defaultdict[tuple[str, bytes], tuple[set[object], set[object]]] = defaultdict(lambda: (set(), set()))
    for side, records in enumerate((expected, found)):
        for target, record, rank, document in records:
            versions[target, record][side].add((rank if is_ranked else None, document))
    return {one for one, (wanted, seen) in versions.items() if wanted != seen}


def some_records(chance: random.Random) -> tuple[list[Record], list[Record]]:
    """Make two sides with all kinds of differences; the found records come in another order, and some twice."""
    expected = [
        ("t" if n % 3 else "u", b"%d" % n, 2 * n + 1, b"document %d" % n) for n in range(chance.choice((5, 60)))
    ]
    found = list(expected)
    for _ in range(chance.randrange(12)):
        at = chance.randrange(len(found))
        target, record, rank, document = found[at]
        found[at] = chance.choice(
            (
                (target, record, rank + 2, document),
                (target, record, rank, b"another"),
                (target, record, rank, b""),
                ("v", record, rank, document),
                (target, b"x" + record, rank, document),
            )
        )
    found += chance.sample(found, chance.randrange(len(found)))  # scanned twice
    chance.shuffle(found)
    return expected, found


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("is_ranked", [True, False])
def test_every_record_that_differs_is_a_candidate(
    limits: str, is_ranked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in zip(("MOST_PRINTS", "MOST_IDS"), LIMITS[limits], strict=True):
        monkeypatch.setattr(sides, name, limit)
    for seed in range(30):
        expected, found = some_records(random.Random(seed))
        missed = differing(expected, found, is_ranked=is_ranked) - candidates(expected, found, is_ranked=is_ranked)
        assert not missed, f"seed {seed}"


@pytest.mark.parametrize("limits", LIMITS)
def test_records_that_are_the_same_are_no_candidates(limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in zip(("MOST_PRINTS", "MOST_IDS"), LIMITS[limits], strict=True):
        monkeypatch.setattr(sides, name, limit)
    expected: list[Record] = [("t", b"%d" % n, 2 * n + 1, b"document") for n in range(60)]
    found = expected[::-1]
    assert candidates(expected, found) == set()
    assert candidates(expected, [*found[1:], ("t", b"9", 19, b"changed")]) == {("t", b"9"), ("t", b"59")}


def test_an_unexpected_record_that_is_scanned_twice_is_a_candidate() -> None:
    extra: Record = ("t", b"extra", 7, b"document")
    assert candidates([], [extra, ("t", b"other", 9, None), extra], page=1) == {("t", b"extra")}


def test_a_record_that_two_entries_name_is_expected_as_the_newer_says() -> None:
    with contextlib.closing(Spool()) as spool:
        for rank in (19, 11):
            spool.add_expected(StoredRecords(["t"], [b"r"], [rank], [b"document"]), [b"key%d" % rank])
        spool.add_found(StoredRecords(["t"], [b"r"], [19], [b"document"]))
        spool.compare(copies=False)
        ((one,),) = spool.pages()
    assert one.expected is not None
    assert (one.expected.rank, one.key) == (19, b"key19")


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("at_once", [1, 20, 50_000])
def test_shares_have_together_the_differences_of_one_comparison(
    copies: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "AT_ONCE", at_once)
    for seed in range(20):
        expected, found = some_records(random.Random(seed))
        with contextlib.closing(Spool()) as whole, contextlib.closing(Spool()) as joined:
            for records, keys, expires in expected_pages(expected, copies=copies):
                whole.add_expected(records, keys, expires)
            for records in pages_of(found):
                whole.add_found(records)
            whole.compare(copies=copies)
            for packed in in_shares(expected, found, copies=copies):
                joined.take_candidates(packed)
            found_so, wanted = described(joined), described(whole)
        differ = differing(expected, found, is_ranked=True)
        assert {one: found_so.get(one) for one in differ} == {one: wanted.get(one) for one in differ}, f"seed {seed}"
        others = {one[:2] for one in found if found.count(one) > 1}  # scanned twice, they may be checked again
        assert set(found_so) <= differ | others, f"seed {seed}"


def pages_of(records: Sequence[Record]) -> Iterator[StoredRecords]:
    for start in range(0, len(records), 7):
        yield StoredRecords(*map(list, zip(*records[start : start + 7], strict=True)))  # type: ignore[arg-type]


def expected_pages(
    expected: Sequence[Record], *, copies: bool
) -> Iterator[tuple[StoredRecords, Sequence[bytes], list[bool] | None]]:
    """Make pages with keys, of which every other one has records with a time to live."""
    for number, records in enumerate(pages_of(expected)):
        keys = records.ids if copies else [b"key of " + one for one in records.ids]
        yield records, keys, [True] * len(records) if number % 2 else None


def in_shares(expected: Sequence[Record], found: Sequence[Record], *, copies: bool) -> Iterator[bytes]:
    """Compare three shares one by one, as other processes would, and return what each passes on."""
    divider = shares.Divider(0, 3)
    divided = [one for page in expected_pages(expected, copies=copies) for one in divider.add(*page)]
    divided += [*divider.rest(), *shares.divided(1, 3, pages_of(found))]
    for share in range(3):
        with contextlib.closing(Spool()) as spool:
            for number, packed in divided:
                if number == share:
                    spool.add_page(shares.Page.unpacked(packed))
            spool.compare(copies=copies)
            yield from spool.packed_candidates()


def described(spool: Spool) -> dict[tuple[str, bytes], tuple[object, ...]]:
    """Return all candidates with what is expected of them."""
    found = (one for rows in spool.pages() for one in rows)
    return {(spool.target(one.target), one.id): (one.key, one.expected, one.expires) for one in found}
