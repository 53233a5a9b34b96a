"""The result of one check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from export_queue.core.errors import ExportQueueError

Level = Literal["ok", "warning", "error"]
"""``warning``: work can go on, and something should be changed. ``error``: something will not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found about one subject."""

    subject: str
    level: Level
    found: str
    fix: str | None = None
    """What to do; None if nothing is to be done."""

    @classmethod
    def ok(cls, subject: str, found: str) -> Check:
        """Build the result of a check that found nothing wrong."""
        return cls(subject=subject, level="ok", found=found)

    @classmethod
    def warning(cls, subject: str, found: str, *, fix: str) -> Check:
        """Build the result of a check that found something to change."""
        return cls(subject=subject, level="warning", found=found, fix=fix)

    @classmethod
    def error(cls, subject: str, found: str, *, fix: str) -> Check:
        """Build the result of a check that found what will not work."""
        return cls(subject=subject, level="error", found=found, fix=fix)

    @classmethod
    def failed(cls, subject: str, error: Exception) -> Check:
        """Build the result of a check that an error has ended; the error's hint is the fix."""
        if isinstance(error, ExportQueueError):
            found = f"{type(error).__name__}: {error.message}"
            return cls.error(subject, found, fix=error.hint or "see the message, then run the command again")
        return cls.error(subject, f"{type(error).__name__}: {error}", fix="see the message of the driver")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"subject": self.subject, "level": self.level, "found": self.found, "fix": self.fix}


def checked(
    subject: str, step: Callable[[], Iterable[Check]], also: type[Exception] = ExportQueueError
) -> Iterator[Check]:
    """Yield the results of a step; an error that ends it is a result, too.

    :param also: errors that are expected besides those of this library.
    """
    try:
        yield from step()
    except (ExportQueueError, also) as error:
        yield Check.failed(subject, error)
