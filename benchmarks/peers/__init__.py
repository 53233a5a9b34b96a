"""Drains on Spark against what a user would pick instead: connectors of Spark, and a loop with each client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.measuring import Figure, Outcome


def run(quick: bool) -> Iterator[Figure | Outcome]:
    # inside, since Spark's processes import this package too, and have no use for servers
    from benchmarks.peers.comparison import compare

    return compare(quick)
