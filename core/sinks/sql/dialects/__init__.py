"""What differs between databases: a dialect each, and the choice of one by its URL."""

from export_queue.core.sinks.sql.dialects.opening import open_dialect
from export_queue.core.sinks.sql.dialects.protocol import (
    KEPT_OUT,
    Clash,
    Dialect,
    Password,
    Poison,
    SchemaChanged,
    TryAgain,
)

__all__ = ["KEPT_OUT", "Clash", "Dialect", "Password", "Poison", "SchemaChanged", "TryAgain", "open_dialect"]
