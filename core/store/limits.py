"""Limits of the time and size of transactions, and of the number of connections."""

from __future__ import annotations

from dataclasses import dataclass, fields

from export_queue.core.errors import InvalidArgument

MAX_SHORT_SECONDS = 3600.0
"""Maximum time-out of a short transaction in every process. Clean-up keeps all versions that a snapshot of this age may
read."""
KEPT_CONNECTIONS = 16
"""Maximum number of idle connections that a process keeps open."""
MOST_CONNECTIONS = 64
"""Maximum number of connections of a process. Each read, write and commit in progress takes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time-outs and sizes of a process's transactions.

    A change is a cell, an entry or a conflict key. A short transaction is sent as a whole, and a long one flush by
    flush, so these limits bound the memory of this process and of the store's.
    """

    short_seconds: float = 30.0
    """Default time-out."""
    max_short_seconds: float = MAX_SHORT_SECONDS
    """Maximum time-out; at most 3600."""
    long_seconds: float = 24 * 3600.0
    max_long_seconds: float = 7 * 24 * 3600.0
    warn_changes: int = 100_000
    """Number of changes from which on a warning is logged."""
    max_changes: int = 1_000_000
    """Maximum number of changes."""
    warn_bytes: int = 64 << 20
    max_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidArgument(f"{field.name}: expected more than 0, found {getattr(self, field.name)}")
        if self.max_short_seconds > MAX_SHORT_SECONDS:
            raise InvalidArgument(
                f"max_short_seconds: expected at most {MAX_SHORT_SECONDS:.0f}, found {self.max_short_seconds}",
                hint="what takes longer is a long transaction: transaction(long=True)",
            )

    def timeout_ms(self, seconds: float | None, *, long: bool) -> int:
        """Check a time-out, or take the default.

        :raises InvalidArgument: it is not positive, or too long.
        """
        default, most = (
            (self.long_seconds, self.max_long_seconds) if long else (self.short_seconds, self.max_short_seconds)
        )
        asked = min(default, most) if seconds is None else seconds
        if not 0 < asked <= most:
            raise InvalidArgument(
                f"timeout: expected more than 0 and at most {most:g} seconds, found {seconds}",
                hint="give the store other limits: Store.open(url, limits=Limits(...))",
            )
        return int(asked * 1000)
