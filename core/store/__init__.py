"""The store: one schema of a SQL database, and all SQL that uses it.

Other rooms use ``queries``, whose functions take an open SQL transaction, and the seams of the database's dialect.
"""

from export_queue.core.store import queries
from export_queue.core.store.conflict_keys import (
    cell_key,
    cells_of_key,
    entry_key,
    notification_key,
    participant_key,
    row_key,
)
from export_queue.core.store.counters import Counters, Counts, Histogram
from export_queue.core.store.creation import adopt, create, identity_of
from export_queue.core.store.database import ANSWER_SECONDS, Database, Identity, Reading, Work
from export_queue.core.store.facts import Rights, ServerFacts
from export_queue.core.store.hints import ALL_QUEUES, acknowledgements_of
from export_queue.core.store.limits import KEPT_CONNECTIONS, MAX_SHORT_SECONDS, MOST_CONNECTIONS, Limits
from export_queue.core.store.opening import DEFAULT_SCHEMA, open_database
from export_queue.core.store.place import parse_place
from export_queue.core.store.queries.outcomes import new_request
from export_queue.core.store.refusals import StagedMeanwhile, added_to_subscription, layout_closed, removed_subscription
from export_queue.core.store.roles import RIGHTS, ROLES, Right, Role, grants, nearest, quoted
from export_queue.core.store.schema import SCHEMA_VERSION
from export_queue.core.store.seams import (
    Cell,
    Clock,
    CommitCall,
    EntryKey,
    Handle,
    Listener,
    LockCall,
    Outcome,
    Scan,
    Span,
    StartCall,
    Swept,
    Version,
    VersionKey,
    Writes,
)
from export_queue.core.store.snapshot import AnySnapshot, ServerSnapshot, Snapshot, pack_ids, unpack_ids
from export_queue.core.store.spec import StoreSpec
from export_queue.core.store.sqlite.backup import back_up
from export_queue.core.store.state_key import SEGMENT_COLUMNS, KeyInLayout

__all__ = [
    "ALL_QUEUES",
    "ANSWER_SECONDS",
    "DEFAULT_SCHEMA",
    "KEPT_CONNECTIONS",
    "MAX_SHORT_SECONDS",
    "MOST_CONNECTIONS",
    "RIGHTS",
    "ROLES",
    "SCHEMA_VERSION",
    "SEGMENT_COLUMNS",
    "AnySnapshot",
    "Cell",
    "Clock",
    "CommitCall",
    "Counters",
    "Counts",
    "Database",
    "EntryKey",
    "Handle",
    "Histogram",
    "Identity",
    "KeyInLayout",
    "Limits",
    "Listener",
    "LockCall",
    "Outcome",
    "Reading",
    "Right",
    "Rights",
    "Role",
    "Scan",
    "ServerFacts",
    "ServerSnapshot",
    "Snapshot",
    "Span",
    "StagedMeanwhile",
    "StartCall",
    "StoreSpec",
    "Swept",
    "Version",
    "VersionKey",
    "Work",
    "Writes",
    "acknowledgements_of",
    "added_to_subscription",
    "adopt",
    "back_up",
    "cell_key",
    "cells_of_key",
    "create",
    "entry_key",
    "grants",
    "identity_of",
    "layout_closed",
    "nearest",
    "new_request",
    "notification_key",
    "open_database",
    "pack_ids",
    "parse_place",
    "participant_key",
    "queries",
    "quoted",
    "removed_subscription",
    "row_key",
    "unpack_ids",
]
