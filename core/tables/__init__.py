"""Tables of versioned cells inside a transaction."""

from export_queue.core.tables.observed import ObservedColumns, ObserverKind
from export_queue.core.tables.options import (
    ConflictLevel,
    TableOptions,
    add_table,
    check_name,
    configure_table,
    find_or_add_table,
    find_table,
)
from export_queue.core.tables.table import Table, as_key

__all__ = [
    "ConflictLevel",
    "ObservedColumns",
    "ObserverKind",
    "Table",
    "TableOptions",
    "add_table",
    "as_key",
    "check_name",
    "configure_table",
    "find_or_add_table",
    "find_table",
]
