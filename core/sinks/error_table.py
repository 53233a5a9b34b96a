"""The meaning of a client's errors, as a table that its sink uses and the documentation shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from export_queue.core.errors import SinkConfigurationError, SinkError, SinkRefused, SinkUnavailable


class Fate(Enum):
    """What happens to a batch, or to one operation, after an error."""

    AGAIN = "repeated at once"
    """Another transaction had priority. After several attempts it counts as ``LATER``."""
    LATER = "`SinkUnavailable`"
    """Transient: the drain waits and tries again."""
    REFUSED = "`SinkRefused`"
    """Terminal: the drain ends, and a person has to act."""
    CONFIGURATION = "`SinkConfigurationError`"
    """Terminal: the sink's options or its target must be changed."""
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
    """The meaning of one or more error codes.

    :param code: codes of the client or server, separated by commas. ``22*`` means all codes that begin with 22, ``*``
        any other code. Errors without a code get a name from this library, such as ``no answer``.
    :param note: what the error means and what to do; it becomes the hint.
    """

    code: str
    fate: Fate
    note: str

    def error(self, message: str) -> SinkError | SinkConfigurationError:
        """Return the error to raise. Not for ``REJECTED``."""
        return _CLASSES[self.fate](message, hint=self.note)


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """All errors of one client. The last row is for any other code.

    :param client: the client's name in the documentation.
    """

    client: str
    rows: Sequence[ErrorRow]

    def find(self, code: str) -> ErrorRow:
        """Return the row of a code: an exact match, or else the longest matching prefix."""
        for row in self.rows:
            if code in row.code.split(", "):
                return row
        alike = [row for row in self.rows if row.code.endswith("*") and code.startswith(row.code[:-1])]
        return max(alike, key=lambda row: len(row.code))

    def markdown(self) -> str:
        """Return the table for the documentation."""
        lines = ["| code | is | what it is, what to do |", "|---|---|---|"]
        lines += [f"| `{row.code}` | {row.fate.value} | {row.note} |" for row in self.rows[:-1]]
        lines += [f"| any other | {row.fate.value} | {row.note} |" for row in self.rows[-1:]]
        return "\n".join(lines) + "\n"
