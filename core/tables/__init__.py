"""Tables of versioned cells inside a transaction."""

from export_queue.core.tables.cells import CellTypes, as_key, cell_types
from export_queue.core.tables.observed import ObservedColumns, ObserverKind
from export_queue.core.tables.options import (
    ConflictLevel,
    TableOptions,
    add_table,
    check_name,
    configure_table,
    find_table,
    known_table,
)
from export_queue.core.tables.table import Table

__all__ = [
    "CellTypes",
    "ConflictLevel",
    "ObservedColumns",
    "ObserverKind",
    "Table",
    "TableOptions",
    "add_table",
    "as_key",
    "cell_types",
    "check_name",
    "configure_table",
    "find_table",
    "known_table",
]
