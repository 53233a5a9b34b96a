"""What a bulk load has added; plain values, stored with the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One DataFrame that has become entries.

    :param transaction: the id of the transaction, which is the seq of every entry; None without a transaction.
    :param entries: entries added.
    :param bytes: their keys and values.
    :param files: files written; they count from the commit on.
    :param queues: entries by queue.
    :param repeated: whether an earlier call under the same idempotency key has added them, and this one nothing.
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
        """Return plain values for JSON; the id is text, since it exceeds what doubles hold."""
        return asdict(self) | {"transaction": None if self.transaction is None else str(self.transaction)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], **changed: Any) -> Self:
        """Read what :meth:`to_dict` gave.

        :param changed: fields with another value.
        """
        number = found["transaction"]
        return cls(**{**found, "transaction": None if number is None else int(number), **changed})
