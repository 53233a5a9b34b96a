"""The meaning of PostgreSQL's errors for a store."""

from __future__ import annotations

import json

import psycopg

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    ConfigurationError,
    ExportQueueError,
    RegistrationLost,
    SnapshotTooOld,
    StoreUnavailable,
    TransactionTimeout,
)
from export_queue.core.store.queries.conflict_keys import conflict_error


def is_missing_table(error: BaseException) -> bool:
    """Tell whether the error says that the store's schema, tables or functions are not there."""
    return getattr(error, "sqlstate", None) in ("42P01", "3F000", "42883") and "xq_" in str(error)


def is_transient(error: BaseException) -> bool:
    """Tell whether trying again may help: connection, resources, operator, deadlock, serialization."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state[:2] in ("08", "53", "57", "40", "55", "58")


def unavailable(error: BaseException, *, where: str = "the store's database") -> StoreUnavailable:
    """Build the error of a database that could not do it now, with a hint where to look."""
    hint = None
    if getattr(error, "sqlstate", None) == "53200" and "lock" in str(error):
        hint = (
            "the server's lock table is full: look at pg_locks for the sessions that fill it, or raise "
            "max_locks_per_transaction; a commit of a store takes one lock beside those of its tables"
        )
    return StoreUnavailable(f"{where}: {str(error).strip()}", hint=hint)


def refusal(error: psycopg.Error) -> ExportQueueError | None:
    """Turn an error that the functions raise into one of ours; None if they did not raise it."""
    match error.sqlstate:
        case "XQ001":
            found = json.loads(error.diag.message_detail or "{}")
            return conflict_error(found["transaction"], bytes.fromhex(found["key"]), found["writer"])
        case "XQ002":
            return RegistrationLost(f"the transaction is no longer registered: {error.diag.message_primary}")
        case "XQ003":
            return TransactionTimeout("the transaction's deadline has passed, by the store's clock")
        case "XQ004":
            return CommitRefused("the commit was refused before, and stays refused")
        case "XQ005":
            return AlreadyCommitted("", None)
        case "XQ006":
            return SnapshotTooOld(error.diag.message_detail or "clean-up has overtaken the snapshot")
        case "XQ007":
            return ConfigurationError(
                f"transactions need READ COMMITTED, found {error.diag.message_primary}",
                hint="remove default_transaction_isolation from the role, the database or the server",
            )
        case _:
            return None
