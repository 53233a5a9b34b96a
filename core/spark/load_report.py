"""What a load of a DataFrame reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load added; the result of its idempotency key.

    :param transaction: the id of the transaction, which is the seq of every entry; None without a transaction.
    :param entries: number of entries added.
    :param bytes: size of their keys and values.
    :param files: number of files written.
    :param queues: number of entries by queue.
    :param seconds: how long the load took.
    :param repeated: whether an earlier call under the same idempotency key added them, and this call added nothing.
    """

    transaction: int | None
    entries: int
    bytes: int
    files: int
    queues: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    repeated: bool = False

    def line(self) -> str:
        """Return one line for a log."""
        names = ", ".join(sorted(self.queues)) or "no queue"
        text = f"{names}: {self.entries} entries, {self.bytes} bytes in {self.files} files; {self.seconds:.1f} s"
        if self.transaction is not None:
            text += f"; transaction {self.transaction}"
        return f"{text}; added by an earlier call" if self.repeated else text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; the id is text, because doubles cannot hold it."""
        return asdict(self) | {"transaction": None if self.transaction is None else str(self.transaction)}
