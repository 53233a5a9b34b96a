"""The pages of a scan: how long each is, which cells it decides, where own writes go; no I/O."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

FIRST_PAGE, LARGEST_PAGE = 100, 5000
"""Versions that a scan reads with its first statement, and with a later one at most."""
PAGE_BYTES = 4 << 20
"""Bytes of values on a later page: its length follows from the values of the page before it."""

MANY_VERSIONS = 4
"""Versions of a cell from which on the database picks the newest one."""

Found: TypeAlias = tuple[bytes, bytes, bytes]
"""Row, column, value."""
Stored: TypeAlias = tuple[bytes, bytes, bytes | None]
"""Row, column, value of one version; None is a tombstone."""

_VALUE = itemgetter(2)
_END = b"", b"", None  # no cell: a column's name is not empty


@dataclass(frozen=True, slots=True)
class Page:
    """The versions that one statement found.

    A page decides a cell only if it holds all its versions: between two statements clean-up may remove an old version
    together with the tombstone that hides it.
    """

    decided: list[Stored]
    """The newest version of each cell that lies on the page as a whole."""
    cut: tuple[bytes, bytes] | None
    """Row and column of the last cell, where the next page begins; None on the last page."""


def page_of(rows: Sequence[Stored], limit: int) -> Page:
    """Find the newest version of each cell.

    :param rows: versions in the order of row, column and version.
    :param limit: how many were asked for; fewer are the last page.
    """
    newest = [one for one, next_ in pairwise((*rows, _END)) if one[0] != next_[0] or one[1] != next_[1]]
    if len(rows) < limit:
        return Page(newest, None)
    row, column, _ = newest.pop()
    return Page(newest, (row, column))


def newest_of(rows: Sequence[Stored], limit: int) -> Page:
    """Take a page of which the database has picked the newest version of each cell.

    :param rows: in the order of row and column.
    :param limit: how many were asked for; fewer are the last page.
    """
    return Page(list(rows), None if len(rows) < limit else (rows[-1][0], rows[-1][1]))


def first_limit(most: int, cells: int | None) -> tuple[int, int]:
    """Choose how many versions the first page has, and a later one at most.

    :param most: no page is longer.
    :param cells: how many cells are wanted; None for all.
    """
    longest = most if cells is None else min(most, max(cells + 1, FIRST_PAGE))
    return min(longest, FIRST_PAGE), longest


def next_page(rows: Sequence[Stored], page: Page, limit: int, longest: int, *, newest: bool) -> tuple[bool, int]:
    """Choose the next page: whether it has only the newest version of each cell, and how many versions.

    Where cells have many versions the database picks the newest one, which costs more where they have few. So after
    such a page a short one looks how many there are.

    :param newest: whether this page had only the newest ones.
    """
    if newest:
        return False, min(limit, FIRST_PAGE)
    has_many = len(rows) >= MANY_VERSIONS * (len(page.decided) + 1)
    size = sum(map(len, filter(None, map(_VALUE, rows))))
    fitting = max(1, min(longest, limit * PAGE_BYTES // (size + 1)))
    return has_many, fitting


def merged(stored: Iterator[Found], own: Mapping[tuple[bytes, bytes], bytes | None]) -> Iterator[Found]:
    """Put own writes into their places among the stored cells.

    :param own: the value of each own cell; None is a delete.
    """
    if not own:
        return stored
    others = (found for found in stored if found[:2] not in own)
    written: Iterable[Found] = sorted((*cell, value) for cell, value in own.items() if value is not None)
    return heapq.merge(others, written)
