"""Translation of PostgreSQL's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import psycopg

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    ConfigurationError,
    ExportQueueError,
    RegistrationLost,
    SnapshotTooOld,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
    TransactionTimeout,
)
from export_queue.core.store.conflict_keys import conflict_error
from export_queue.core.store.refusals import (
    StagedMeanwhile,
    added_to_subscription,
    first_load_not_missing,
    layout_closed,
    removed_while_loading,
)
from export_queue.core.store.roles import grants, on_object

NO_WRITES = "25006"
OTHER_SESSION = ("26000", "42P05")
"""A prepared statement is missing, or exists already: the driver is connected to another session."""
_TIME_LIMITS = ("57014", "57P05", "55P03", "25P03", "25P04")
_TOO_MANY = ("too many connections", "too many clients", "remaining connection slots")
"""Texts of a refused connection, whose error has no code."""
STANDBY_HINT = (
    "a store is the primary: let the URL lead there, with several hosts by target_session_attrs=primary; "
    "or else the role, the database or the server has default_transaction_read_only = on"
)
_DENIED = re.compile(r"\b((?:xq_)\w+)$", re.MULTILINE)
"""The object in the server's message, in whatever language that is."""
_EXISTS = ("23505", "42P06", "42P07", "42710", "42723")
"""A row, schema, table, object or function exists already."""


def is_missing_table(error: BaseException) -> bool:
    """Return whether the error says that the store's schema, tables or functions do not exist."""
    if isinstance(error, psycopg.Error) and error.diag.source_function == "op_error":
        return False  # an operator is missing, for an argument of another type
    return getattr(error, "sqlstate", None) in ("42P01", "3F000", "42883") and "xq_" in str(error)


def is_creation_met(error: BaseException) -> bool:
    """Return whether a creation collided with another one in the catalogue."""
    if isinstance(error, StoreUnavailable):  # a deadlock, or a wait for a lock that took too long
        state = getattr(error.__cause__, "sqlstate", None) or ""
        return state[:2] == "40" or state == "55P03"
    state = getattr(error, "sqlstate", None)
    return (state or "") in _EXISTS or (state == "XX000" and "concurrently" in str(error))


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether a wait for a lock took too long, also inside SQLAlchemy's error or this library's."""
    found = getattr(error, "orig", None) or (error.__cause__ if isinstance(error, StoreUnavailable) else error)
    return isinstance(found, psycopg.errors.LockNotAvailable)


def is_transient(error: BaseException) -> bool:
    """Return whether trying again may help: connection, resources, operator, deadlock, serialization."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    # 25006: no writes, as on a standby before it is promoted; 25P03, 25P04: a SQL transaction was open for too long
    return state[:2] in ("08", "53", "57", "40", "55", "58") or state in (NO_WRITES, "25P03", "25P04", *OTHER_SESSION)


def is_missing_right(error: BaseException) -> bool:
    """Return whether the role lacks a right."""
    return getattr(error, "sqlstate", None) == "42501"


def missing_right(error: BaseException, *, where: str, schema: str, role: str | None) -> StoreError:
    """Build the error of a role that lacks a right, with the statement that gives it."""
    found = _DENIED.search(str(error))
    of_roles = on_object(found[1]) if found else {}
    told = [f"as {one}: {'; '.join(grants(rights, schema, role or 'ROLE'))}" for one, rights in of_roles.items()]
    told.append("see which rights the role lacks, and the statements that grant them: export-queue doctor")
    return StoreError(f"{where}: {str(error).strip()}", hint="; ".join(told))


def unavailable(error: BaseException, *, where: str = "the store's database") -> StoreUnavailable:
    """Build the error of a database that is unavailable now, with a hint."""
    hint = None
    state = getattr(error, "sqlstate", None)
    if state == "53200" and "lock" in str(error):
        hint = (
            "the server's lock table is full: look at pg_locks for the sessions that fill it, or raise "
            "max_locks_per_transaction; a commit of a store takes one lock beside those of its tables"
        )
    elif state == NO_WRITES:
        hint = STANDBY_HINT
    elif state in _TIME_LIMITS:
        hint = (
            "if nobody cancelled it, a time limit of the role, the database or the server did (statement_timeout, "
            "lock_timeout, idle_session_timeout …): ALTER ROLE … SET … = 0 for the role that uses the store"
        )
    elif state is None and any(one in str(error) for one in _TOO_MANY):
        hint = (
            "close connections, or raise the limit that the message names (max_connections of the server, ALTER ROLE "
            "or ALTER DATABASE … CONNECTION LIMIT), or use a pooler in transaction mode with behind_pooler=True"
        )
    elif state in OTHER_SESSION:
        hint = (
            "a pooler or a proxy gives this connection different sessions of the server: open the store with "
            "behind_pooler=True (export-queue --behind-pooler), or connect to the server itself"
        )
    unavailable = StoreUnavailable(f"{where}: {str(error).strip()}", hint=hint)
    unavailable.sent = state not in (NO_WRITES, *OTHER_SESSION)
    return unavailable


def translated(error: psycopg.Error) -> ExportQueueError | None:
    """Translate an error of the functions or of the connection into this library's; None for all others."""
    found = refusal(error)
    return unavailable(error) if found is None and is_transient(error) else found


def refusal(error: psycopg.Error) -> ExportQueueError | None:
    """Translate an error that the functions raise; None for all others."""
    match error.sqlstate:
        case "XQ001":
            found = json.loads(error.diag.message_detail or "{}")
            key = bytes.fromhex(found["key"])
            return conflict_error(found["transaction"], key, found["writer"], name=found["name"])
        case "XQ006":
            return SnapshotTooOld(error.diag.message_detail or "clean-up has overtaken the snapshot")
    build = _REFUSALS.get(error.sqlstate or "")
    return None if build is None else build(error.diag.message_primary or "")


_REFUSALS: dict[str, Callable[[str], ExportQueueError]] = {
    "XQ002": lambda message: RegistrationLost(f"the transaction is no longer registered: {message}"),
    "XQ003": lambda _: TransactionTimeout("the transaction's deadline has passed, by the store's clock"),
    "XQ004": lambda _: CommitRefused("the commit was refused before, and stays refused"),
    "XQ005": lambda _: AlreadyCommitted("", None),
    "XQ007": lambda level: ConfigurationError(
        f"transactions need READ COMMITTED, found {level}",
        hint="remove default_transaction_isolation from the role, the database or the server",
    ),
    "XQ008": lambda _: StoreReplaced(),
    "XQ009": lambda _: async_commits(),
    "XQ010": added_to_subscription,
    "XQ011": lambda _: first_load_not_missing(),
    "XQ013": lambda _: removed_while_loading(),
    "XQ014": lambda _: layout_closed("a queue"),
    "XQ015": lambda _: StagedMeanwhile(),
}
"""By the SQLSTATE what builds the error from the message."""


def async_commits() -> ConfigurationError:
    """Build the error of commits that a crash of the server may undo after they are acknowledged."""
    return ConfigurationError(
        "synchronous_commit: expected on, local, remote_write or remote_apply, found off: a crash of the server would "
        "lose commits that have been acknowledged and exported",
        hint="in a SQL transaction of your own: SET LOCAL synchronous_commit = on; else ALTER ROLE or ALTER DATABASE",
    )


def not_utf8(database: str, encoding: str) -> ConfigurationError:
    """Build the error of a database that cannot store all texts, such as names and reasons of dead letters."""
    return ConfigurationError(
        f"database {database}: expected the encoding UTF8, which holds every text, found {encoding}",
        hint="create a database for the store: CREATE DATABASE exports TEMPLATE template0 ENCODING 'UTF8' "
        "LOCALE 'C.UTF-8'",
    )


def standby() -> StoreUnavailable:
    """Build the error of a standby, whose snapshots would be wrong. It may be promoted."""
    return StoreUnavailable("the server is a standby", hint=STANDBY_HINT)
