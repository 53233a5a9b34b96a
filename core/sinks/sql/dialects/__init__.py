"""What differs between databases: a dialect each, and the choice of one by its URL."""

from export_queue.core.sinks.sql.dialects.opening import open_dialect
from export_queue.core.sinks.sql.dialects.protocol import Clash, Dialect, Password, Poison, TryAgain

__all__ = ["Clash", "Dialect", "Password", "Poison", "TryAgain", "open_dialect"]
