"""Tables of versioned cells inside a transaction."""

from export_queue.core.tables.options import ConflictLevel, TableOptions, configure_table, find_or_add_table
from export_queue.core.tables.table import Table

__all__ = ["ConflictLevel", "Table", "TableOptions", "configure_table", "find_or_add_table"]
