"""INSERT with ON CONFLICT: the same words in both dialects, which SQLAlchemy keeps apart."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from export_queue.core.store.database import Work


def insert_into(work: Work, table: sa.Table) -> Any:
    """Begin an INSERT that may have ``on_conflict_do_nothing`` or ``on_conflict_do_update``."""
    return insert_for(work.connection.dialect.name, table)


def insert_for(dialect: str, table: sa.Table) -> Any:
    """Begin such an INSERT for one dialect, where it is kept for later.

    :param dialect: its name, as SQLAlchemy gives it.
    """
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)
