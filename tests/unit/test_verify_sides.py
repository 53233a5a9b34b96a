"""Which records of two sides are compared by their rows."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pytest

from export_queue.core.sinks import StoredRecords
from export_queue.core.verify import fingerprints, shares, sides
from export_queue.core.verify.rows import Rows, digest_of
from export_queue.core.verify.spool import Spool

Record = tuple[str, bytes, int, bytes | None]
SUMS = {"whole pages": fingerprints.WholePages, "one by one": fingerprints.OneByOne}
PARTS = {"many parts": 22, "few parts": 2}


@pytest.fixture(params=SUMS)
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], fingerprints.Sums]:
    """Add fingerprints up as numpy does, and as Python does without it."""
    if request.param == "whole pages":
        pytest.importorskip("numpy")
    monkeypatch.setattr(sides, "new_sums", SUMS[request.param])
    return SUMS[request.param]


@pytest.fixture(params=PARTS)
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "PART_BITS", PARTS[request.param])


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


@pytest.mark.usefixtures("sums", "parts")
@pytest.mark.parametrize("is_ranked", [True, False])
def test_every_record_that_differs_is_a_candidate(is_ranked: bool) -> None:
    for seed in range(30):
        expected, found = some_records(random.Random(seed))
        missed = differing(expected, found, is_ranked=is_ranked) - candidates(expected, found, is_ranked=is_ranked)
        assert not missed, f"seed {seed}"


@pytest.mark.usefixtures("sums", "parts")
def test_records_that_are_the_same_are_no_candidates() -> None:
    expected: list[Record] = [("t", b"%d" % n, 2 * n + 1, b"document") for n in range(60)]
    found = expected[::-1]
    assert candidates(expected, found) == set()
    assert candidates(expected, [*found, *found]) == set(), "scanned twice"
    assert candidates(expected, [*found[1:], ("t", b"9", 19, b"changed")]) == {("t", b"9"), ("t", b"59")}


ONE: Record = ("t", b"1", 3, b"document")
NEAR_MISSES: dict[str, tuple[Record, Record]] = {
    "another document": (ONE, ("t", b"1", 3, b"documenT")),
    "a document of zeros is longer": (("t", b"1", 3, bytes(4)), ("t", b"1", 3, bytes(5))),
    "one of a megabyte differs in a bit": (
        ("t", b"1", 3, bytes(1 << 20)),
        ("t", b"1", 3, bytes((1 << 20) - 1) + b"\1"),
    ),
    "an empty document is none": (("t", b"1", 3, b""), ("t", b"1", 3, None)),
    "a document of zeros is none": (("t", b"1", 3, bytes(16)), ("t", b"1", 3, None)),
    "text that looks like null": (("t", b"1", 3, b"null"), ("t", b"1", 3, None)),
    "bytes that look like text": (("t", b"1", 3, "é".encode()), ("t", b"1", 3, "é".encode("latin-1"))),
    "a number that looks like text": (("t", b"1", 3, b"1"), ("t", b"1", 3, b'"1"')),
    "a rank lower by one": (ONE, ("t", b"1", 2, b"document")),
    "a rank above 32 bits": (ONE, ("t", b"1", 3 + (1 << 32), b"document")),
    "the largest rank": (("t", b"1", (1 << 63) - 1, b"document"), ("t", b"1", -1, b"document")),
    "another target": (ONE, ("u", b"1", 3, b"document")),
    "an id that is longer by a zero": (ONE, ("t", b"1\0", 3, b"document")),
    "an empty id": (ONE, ("t", b"", 3, b"document")),
    "id and document the other way round": (ONE, ("t", b"document", 3, b"1")),
    "a long id": (("t", b"i" * 5000, 3, b""), ("t", b"i" * 4999 + b"j", 3, b"")),
}


@pytest.mark.usefixtures("sums", "parts")
@pytest.mark.parametrize("case", NEAR_MISSES)
def test_records_that_are_nearly_the_same_differ(case: str) -> None:
    one, other = NEAR_MISSES[case]
    rest: list[Record] = [("t", b"rest %d" % n, n, None if n % 5 == 0 else b"document") for n in range(20)]
    if one[3] is not None and other[3] is not None:  # nobody misses a tombstone that the source does not know
        assert candidates([*rest, one], [other, *rest]) == {one[:2], other[:2]}
    assert candidates([*rest, other], [one, *rest]) == {one[:2], other[:2]}
    assert candidates([*rest, one, other], [one, other, *rest]) - {one[:2]} == set()
    assert candidates([one], [one]) == candidates([other], [other]) == set()


@pytest.mark.usefixtures("sums", "parts")
@pytest.mark.parametrize("column", [0, 2, 3])
def test_records_that_have_exchanged_a_value_differ(column: int) -> None:
    """What is added up must not cancel out."""
    for seed in range(20):
        chance = random.Random(seed)
        pair: list[list[object]] = [
            [
                chance.choice("tuv"),
                chance.randbytes(chance.randrange(1, 20)),
                chance.randrange(1 << 62),
                chance.randbytes(9),
            ]
            for _ in range(2)
        ]
        exchanged = [list(one) for one in pair]
        exchanged[0][column], exchanged[1][column] = pair[1][column], pair[0][column]
        if exchanged != pair:
            sides_of: list[list[Record]] = [[tuple(one) for one in side] for side in (pair, exchanged)]  # type: ignore[misc]
            assert {one for _, one in candidates(*sides_of)} == {one[1] for one in sides_of[0]}, f"seed {seed}"


def test_the_order_of_records_and_pages_does_not_matter(sums: Callable[[], fingerprints.Sums]) -> None:
    records: list[Record] = [("tu"[n % 2], b"%d" % n, n, None if n % 7 == 0 else b"document") for n in range(100)]
    added = sums()
    for side, page in ((0, 7), (1, 100), (1, 3), (0, 50)):
        shuffled = random.Random(page).sample(records, len(records))
        for start in range(0, len(records), page):
            found = StoredRecords(*map(list, zip(*shuffled[start : start + page], strict=True)))  # type: ignore[arg-type]
            added.add(side, Rows.of(found, "tu".index), is_ranked=True)
    assert added.are_zero()


@pytest.mark.parametrize("kind", [tuple, list])
def test_rows_are_the_same_when_they_were_packed(kind: Callable[[Sequence[object]], Sequence[object]]) -> None:
    records = StoredRecords(*map(kind, (["t", "u"], [b"1", b""], [-1, (1 << 63) - 1], [None, b""])))  # type: ignore[arg-type]
    rows = Rows.of(records, "tu".index, [b"k", b""], [True, False])
    for found in (rows, Rows.unpacked(rows.packed()), Rows.joined([rows.take([0]), rows.take([1])])):
        assert list(found.targets) == [0, 1]
        assert list(found.ids) == [b"1", b""]
        assert list(found.ranks) == [-1, (1 << 63) - 1]
        assert found.digest_list() == [None, digest_of(b"")]
        assert (list(found.keys or ()), list(found.expires or ())) == ([b"k", b""], [True, False])


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
        assert set(found_so) <= differ, f"seed {seed}"


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
