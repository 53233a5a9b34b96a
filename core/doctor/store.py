"""A store: its server, the rights of the role, schema, clocks, connections, queues and files."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from export_queue.core.doctor.check import Check, checked
from export_queue.core.doctor.places import examine_pending, examine_place, examine_store_file
from export_queue.core.errors import ExportQueueError, StoreNotCreated
from export_queue.core.queue import Queue, list_queues
from export_queue.core.segments import load_pyarrow
from export_queue.core.store import (
    KEPT_CONNECTIONS,
    MOST_CONNECTIONS,
    RIGHTS,
    SCHEMA_VERSION,
    Database,
    Identity,
    Reading,
    Rights,
    ServerFacts,
    grants,
    identity_of,
    nearest,
    queries,
    quoted,
)

WAIT_SECONDS = 10.0
"""Maximum wait for each answer."""
OLDEST_POSTGRESQL = 150000
OLDEST_SQLITE = (3, 40)
"""Oldest tested versions."""
CLOCK_SECONDS = 1.0
"""Difference of two clocks from which on a warning is given."""
AHEAD_SECONDS = 60.0
"""How far the newest id may lie ahead of the store's clock."""
_SAMPLES = 20
"""Segments whose files are looked for, and names in one line."""


def examine_store(database: Database) -> Iterator[Check]:
    """Check a store. A check that cannot be made is an error, and those that need its result are left out."""
    server = database.dialect.server
    also = database.dialect.driver.error
    if server is None:
        yield judge_sqlite(sqlite3.sqlite_version)
    else:
        found = [*checked("server", partial(_examine_server, database), also)]
        yield from found
        if any(one.level == "error" and one.subject == "server" for one in found):
            return
        if any(one.level != "ok" and one.subject == "rights" for one in found):
            return
    try:
        identity = identity_of(database)
    except (ExportQueueError, also) as error:
        yield _judge_opening(database, error)
        return
    yield judge_schema(identity, database.shown_url)
    steps: list[tuple[str, Callable[[Reading], Iterable[Check]]]] = [
        ("clock", _examine_clock),
        ("queues", _examine_queues),
        ("files", _examine_files),
    ]
    for subject, step in steps:
        yield from checked(subject, partial(_reading, database, subject, step), also)


def _reading(database: Database, subject: str, step: Callable[[Reading], Iterable[Check]]) -> Iterator[Check]:
    try:
        with database.read(seconds=WAIT_SECONDS) as work:
            yield from step(work)
    except StoreNotCreated:
        # the store's identity was read before: `init`, which the error names, would hide that its data is lost
        found = f"the store in {database.shown_url} is damaged: it lacks tables"
        yield Check.error(subject, found, fix="restore the database from a backup (docs/operations.md)")


def _judge_opening(database: Database, error: Exception) -> Check:
    if isinstance(error, StoreNotCreated):
        fix = "check the URL and the schema; or create the store: export-queue init"
        return Check.error("store", f"{error.message}", fix=fix)
    return Check.failed("store", error)


def judge_sqlite(version: str) -> Check:
    """Judge the version of SQLite's library."""
    if tuple(map(int, version.split(".")[:2])) < OLDEST_SQLITE:
        return Check.warning("server", f"SQLite {version}; tested from 3.40 on", fix="use a Python with a newer SQLite")
    return Check.ok("server", f"SQLite {version}")


def judge_schema(identity: Identity, shown_url: str) -> Check:
    """Judge the schema of a store that this code may use."""
    found = f"store {identity.store_id} in {shown_url}, schema {identity.schema_version}"
    if identity.schema_version < SCHEMA_VERSION:
        return Check.warning(
            "store", f"{found}; this code has schema {SCHEMA_VERSION}", fix="run `export-queue init` as its owner"
        )
    return Check.ok("store", found)


def _examine_server(database: Database) -> Iterator[Check]:
    server = database.dialect.server
    assert server is not None
    with database.connect(seconds=WAIT_SECONDS) as connection:
        facts, rights = server.facts(connection), server.rights(connection)
    yield judge_server(facts)
    yield from judge_writes(facts)
    yield from judge_connections(facts)
    yield from judge_rights(rights)


def judge_server(facts: ServerFacts) -> Check:
    """Judge the version of a PostgreSQL server, and whether it keeps what it has acknowledged."""
    found = f"PostgreSQL {facts.version}, database {facts.database}, role {facts.role}"
    if not facts.is_durable:
        return Check.warning(
            "server",
            f"{found}; fsync or full_page_writes is off: a crash of the machine may destroy the store",
            fix="ALTER SYSTEM SET fsync = on, likewise full_page_writes; then reload the server",
        )
    if facts.version_number < OLDEST_POSTGRESQL:
        return Check.warning(
            "server", f"{found}; tested from 15 on", fix="upgrade the server to PostgreSQL 15 or newer"
        )
    return Check.ok("server", found)


def judge_writes(facts: ServerFacts) -> Iterator[Check]:
    """Report a session whose transactions may not write."""
    if facts.is_read_only:
        yield Check.error(
            "writes",
            f"transactions of role {facts.role} in database {facts.database} are read-only by default",
            fix="see where default_transaction_read_only comes from (select source from pg_settings where name = "
            "'default_transaction_read_only') and remove it there: ALTER ROLE or ALTER DATABASE … RESET "
            "default_transaction_read_only, ALTER SYSTEM, or the URL's options",
        )


def judge_connections(facts: ServerFacts) -> Iterator[Check]:
    """Compare the connections that are free with those that one more process may use."""
    limits = [
        (facts.max_connections, facts.connections, "the server", "raise max_connections of the server"),
        (
            facts.database_limit,
            facts.database_connections,
            f"database {facts.database}",
            "ALTER DATABASE … CONNECTION LIMIT",
        ),
        (facts.role_limit, facts.role_connections, f"role {facts.role}", "ALTER ROLE … CONNECTION LIMIT"),
    ]
    free, limit, used, whose, raise_it = min(
        (limit - used, limit, used, whose, raise_it) for limit, used, whose, raise_it in limits if limit is not None
    )
    found = (
        f"{used} of {limit} connections of {whose} are in use; a process keeps up to {KEPT_CONNECTIONS}, and takes up "
        f"to {MOST_CONNECTIONS} if so many of its threads use the store at once"
    )
    if not facts.is_own_session:
        found += "; a pooler is in between, whose own limits are not seen here"
    fix = f"{raise_it}; or use a pooler in transaction mode, and pass --behind-pooler; or run fewer processes"
    if free < KEPT_CONNECTIONS:
        yield Check.error("connections", found, fix=fix)
    elif free < MOST_CONNECTIONS:
        yield Check.warning("connections", found, fix=fix)
    else:
        yield Check.ok("connections", found)


def judge_rights(rights: Rights) -> Iterator[Check]:
    """Name the rights that a role lacks, and the statements that grant them."""
    if rights.owner is None:
        return  # there is no store, which another check reports
    if rights.public:
        shown = ", ".join(f"{quoted(rights.schema)}.{name}" for name in rights.public)
        yield Check.error(
            "public rights",
            f"everybody who may use schema {rights.schema} may execute functions that write with the owner's rights: "
            f"{', '.join(rights.public[:3])}",
            fix=f"as {rights.owner}: revoke execute on function {shown} from public",
        )
    if rights.may_public_create:
        yield Check.error(
            "public rights",
            f"everybody may create functions in schema {rights.schema}, which users of the store may then call",
            fix=f"as the schema's owner: revoke create on schema {quoted(rights.schema)} from public",
        )
    if rights.is_owner:
        yield Check.ok("rights", f"role {rights.role} owns the store")
        return
    meant, needed = nearest(rights.held)
    missing = sorted(needed & rights.lacking)
    named = " and ".join(meant)
    if not missing and meant == ("reader",):
        yield Check.warning(
            "rights",
            f"role {rights.role} may only read views, so the store's queues and files are not examined",
            fix="nothing, for a dashboard; else run the doctor as a role that uses the store",
        )
        return
    if not missing:
        yield Check.ok(
            "rights", f"role {rights.role} has the rights of: {named}; init and adopt need its owner {rights.owner}"
        )
        return
    shown = ", ".join(f"{right.privilege} on {right.kind} {right.name or rights.schema}" for right in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    statements = grants(missing, rights.schema, rights.role)
    if len(missing) > _SAMPLES:
        statements = [one for role in meant for one in grants(RIGHTS[role], rights.schema, rights.role)]
    yield Check.error(
        "rights",
        f"role {rights.role} lacks rights of: {named}: {shown}{more}",
        fix=f"as {rights.owner}: {'; '.join(statements)}",
    )


def _examine_clock(work: Reading) -> Iterator[Check]:
    before = time.time()
    now = work.now() / 1000
    after = time.time()
    newest = work.database.dialect.administration.last_id(work.connection) / 1_000_000_000
    is_own = work.database.dialect.server is None
    yield judge_clock(None if is_own else now - (before + after) / 2, slack=(after - before) / 2)
    if newest - now > AHEAD_SECONDS:
        yield Check.warning(
            "ids",
            f"the newest id is {newest - now:.0f} s ahead of the store's clock",
            fix="set the clock of the store's server right. Ids stay in order, but ages and times are wrong until the "
            "clock has reached them",
        )


def judge_clock(ahead: float | None, *, slack: float) -> Check:
    """Judge the difference between the store's clock and that of this machine.

    :param ahead: seconds; None if both are the same clock.
    :param slack: seconds by which the measurement may be wrong: half the time that the answer took.
    """
    if ahead is None:
        return Check.ok("clock", "the store uses the clock of this machine")
    direction = "ahead of" if ahead >= 0 else "behind"
    found = f"the store's clock is {abs(ahead):.3f} s {direction} this machine's (± {slack:.3f})"
    if abs(ahead) - slack > CLOCK_SECONDS:
        fix = "synchronise both machines (chrony, systemd-timesyncd). Leases and time-outs use the store's clock; only "
        return Check.warning("clock", found, fix=fix + "times in logs of this machine do not match the reports")
    return Check.ok("clock", found)


def _examine_queues(work: Reading) -> Iterator[Check]:
    queues = list_queues(work)
    wrong = [one for queue in queues if (one := _judge_codecs(queue)) is not None]
    yield from wrong[:_SAMPLES]
    if len(wrong) < len(queues) or not queues:
        yield Check.ok("queues", f"codecs of {len(queues) - len(wrong)} queues and subscriptions can be imported")


def _judge_codecs(queue: Queue) -> Check | None:
    try:
        queue.load_codecs()
    except ExportQueueError as error:
        return Check.failed(f"queue {queue.id}", error)
    return None


def _examine_files(work: Reading) -> Iterator[Check]:
    database = work.database
    if database.dialect.file is not None:
        yield from examine_store_file(Path(database.dialect.file.path))
    compacted = next((one.id for one in list_queues(work) if one.history_ms is not None), None)
    files = queries.segments.some_waiting_files(work, limit=_SAMPLES)
    if compacted is not None or files:
        load_pyarrow(f"queue {compacted!r}" if compacted is not None else "files with pending entries")
    yield from examine_place(database.segments, needed_by=compacted, is_shared=database.dialect.server is not None)
    yield from examine_pending(files)
