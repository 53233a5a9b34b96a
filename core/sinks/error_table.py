"""What the errors of a client mean, as data: a table a client, which its sink judges by and the documentation shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from export_queue.core.errors import SinkConfigurationError, SinkError, SinkRefused, SinkUnavailable


class Fate(Enum):
    """What becomes of a batch, or of one operation, that met an error."""

    AGAIN = "repeated at once"
    """The transaction gave way to another one; after some tries it is as ``LATER``."""
    LATER = "`SinkUnavailable`"
    """Transient: the drain waits and tries again, with patience."""
    REFUSED = "`SinkRefused`"
    """Terminal: the drain ends, and a person has to act."""
    CONFIGURATION = "`SinkConfigurationError`"
    """Terminal: the sink cannot be used as it is described."""
    REJECTED = "a rejection"
    """Terminal for one operation: its entry becomes a dead letter."""


_CLASSES: dict[Fate, type[SinkError | SinkConfigurationError]] = {
    Fate.AGAIN: SinkUnavailable,
    Fate.LATER: SinkUnavailable,
    Fate.REFUSED: SinkRefused,
    Fate.CONFIGURATION: SinkConfigurationError,
}


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One code, several, or all that begin alike.

    :param code: the client's or server's own; ``22*`` means all that begin so, ``*`` any other; commas part several.
        An error without a code gets a word of this library, such as ``no answer``.
    :param fate: the fate of the batch or operation that met it.
    :param note: what it is and what to do about it; the hint of the error.
    """

    code: str
    fate: Fate
    note: str

    def error(self, message: str) -> SinkError | SinkConfigurationError:
        """Make the error that a sink raises; not for a single operation that is rejected."""
        return _CLASSES[self.fate](message, hint=self.note)


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """All errors of one client; the last row is for any other code.

    :param client: as the documentation calls it.
    """

    client: str
    rows: Sequence[ErrorRow]

    def find(self, code: str) -> ErrorRow:
        """Return the row of a code: its own, else the one with the longest beginning in common."""
        for row in self.rows:
            if code in row.code.split(", "):
                return row
        alike = [row for row in self.rows if row.code.endswith("*") and code.startswith(row.code[:-1])]
        return max(alike, key=lambda row: len(row.code))

    def markdown(self) -> str:
        """Write the table as the documentation has it."""
        lines = ["| code | is | what it is, what to do |", "|---|---|---|"]
        lines += [f"| `{row.code}` | {row.fate.value} | {row.note} |" for row in self.rows[:-1]]
        lines += [f"| any other | {row.fate.value} | {row.note} |" for row in self.rows[-1:]]
        return "\n".join(lines) + "\n"
