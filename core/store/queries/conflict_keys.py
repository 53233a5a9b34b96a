"""SQL about conflict keys."""

from __future__ import annotations

import sqlalchemy as sa

from export_queue.core.store.database import Reading
from export_queue.core.store.schema import conflict_key as c


def last_writer(work: Reading, key: bytes) -> int | None:
    """Read the transaction that committed a write of a conflict key last; None where clean-up has forgotten it."""
    found = work.connection.execute(sa.select(c.c.writer).where(c.c.key == key)).scalar()
    return None if found is None else int(found)
