"""What tests of drains share: acts in the middle of one."""

from __future__ import annotations

from collections.abc import Callable

from export_queue.core.drain import Progress


def after_chunks(count: int, act: Callable[[], object]) -> Callable[[Progress], None]:
    """Do something once in the middle of a drain."""
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        if len(told) == count:
            act()

    return tell
