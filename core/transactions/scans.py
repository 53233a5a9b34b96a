"""The pages of a scan: their length, the cells that they decide, and the merge with own writes; no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

FIRST_PAGE, LARGEST_PAGE = 100, 5000
"""Number of versions on the first page of a scan, and the maximum on later ones."""
PAGE_BYTES = 4 << 20
"""Target size of later pages in bytes of values. Their length is estimated from the page before."""

MANY_VERSIONS = 4
"""Average number of versions per cell from which the database picks the newest one."""

Found: TypeAlias = tuple[bytes, bytes, bytes]
"""Row, column, value."""
Stored: TypeAlias = tuple[bytes, bytes, bytes | None]
"""Row, column, value of one version; None is a tombstone."""

_VALUE = itemgetter(2)
_END = b"", b"", None  # no cell: a column's name is not empty


@dataclass(frozen=True, slots=True)
class Page:
    """The versions that one statement found.

    A page decides a cell only if it holds all versions of the cell: between two statements, clean-up may remove an old
    version together with the tombstone that hides it.
    """

    decided: list[Stored]
    """The newest version of each cell whose versions are all on this page."""
    cut: tuple[bytes, bytes] | None
    """Row and column of the last cell, where the next page starts; None on the last page."""


def page_of(rows: Sequence[Stored], limit: int) -> Page:
    """Find the newest version of each cell.

    :param rows: versions in the order of row, column and version.
    :param limit: number of versions asked for; the last page has fewer.
    """
    newest = [one for one, next_ in pairwise((*rows, _END)) if one[0] != next_[0] or one[1] != next_[1]]
    if len(rows) < limit:
        return Page(newest, None)
    row, column, _ = newest.pop()
    return Page(newest, (row, column))


def newest_of(rows: Sequence[Stored], limit: int) -> Page:
    """Return a page for which the database has already picked the newest version of each cell."""
    return Page(list(rows), None if len(rows) < limit else (rows[-1][0], rows[-1][1]))


def first_limit(most: int, cells: int | None) -> tuple[int, int]:
    """Return the length of the first page, and the maximum length of later ones.

    :param most: maximum length of any page.
    :param cells: number of cells wanted; None for all.
    """
    longest = most if cells is None else min(most, max(cells + 1, FIRST_PAGE))
    return min(longest, FIRST_PAGE), longest


def next_page(rows: Sequence[Stored], page: Page, limit: int, longest: int, *, newest: bool) -> tuple[bool, int]:
    """Return whether the next page holds only the newest version of each cell, and its length.

    If cells have many versions, the database picks the newest ones; with few versions this costs more. A short page
    of all versions follows each such page to check how many versions there are.

    :param newest: whether this page held only the newest versions.
    """
    if newest:
        return False, min(limit, FIRST_PAGE)
    has_many = len(rows) >= MANY_VERSIONS * (len(page.decided) + 1)
    size = sum(map(len, filter(None, map(_VALUE, rows))))
    fitting = max(1, min(longest, limit * PAGE_BYTES // (size + 1)))
    return has_many, fitting


def merged(stored: Iterator[Found], own: Mapping[tuple[bytes, bytes], bytes | None]) -> Iterator[Found]:
    """Merge own writes into the stored cells; None deletes a cell."""
    if not own:
        return stored
    others = (found for found in stored if found[:2] not in own)
    written: Iterable[Found] = sorted((*cell, value) for cell, value in own.items() if value is not None)
    return heapq.merge(others, written)
