"""Both sides of a comparison in temporary files, and the records that may not be the same on both.

What both sides have is found by :mod:`fingerprints`, so that records that are the same cost neither a row nor a
sorting. The rows of the others are read from the files, once both sides are complete.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from export_queue.core.verify.fingerprints import new_sums
from export_queue.core.verify.rows import Rows

_SIZE = 8
"""Bytes of a number before each part of a file."""


class Sides:
    """The rows of both sides."""

    def __init__(self) -> None:
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._sums = new_sums()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def add(self, side: int, rows: Rows, *, is_ranked: bool) -> None:
        """Add a page of one side.

        :param side: 0 for the expected records, 1 for the found ones.
        :param is_ranked: whether ranks are compared; the same for all pages.
        """
        if not rows.ids:
            return
        for part in (self._sums.add(side, rows, is_ranked=is_ranked), rows.packed()):
            self._files[side].write(len(part).to_bytes(_SIZE, "little"))
            self._files[side].write(part)

    def unmatched(self, side: int) -> Iterator[Rows]:
        """Return all rows of the records that differ, and of some others, when both sides are complete."""
        if self._sums.are_zero():
            return
        file = self._files[side]
        file.seek(0)
        while size := file.read(_SIZE):
            some = self._sums.differing(file.read(int.from_bytes(size, "little")))
            length = int.from_bytes(file.read(_SIZE), "little")
            if some:
                yield Rows.unpacked(file.read(length)).take(some)
            else:
                file.seek(length, os.SEEK_CUR)
