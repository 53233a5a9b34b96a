"""The steps of a compaction or move."""

from __future__ import annotations

from collections.abc import Callable

WATCHERS: list[Callable[[str], None]] = []
"""Functions to call at each step with its name, in the thread of the job. An exception ends the job there.

The names are ``locked``, ``begun``, ``piece``, ``written``, ``publishing`` (inside the SQL transaction, before its
commit) and ``published``. Tests interleave or kill a job at a step.
"""


def reached(step: str) -> None:
    for watch in WATCHERS:
        watch(step)
