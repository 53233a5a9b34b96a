"""Suites run another way: as one of a store's roles, or through PgBouncer. ``EXPORT_QUEUE_TEST_WAY`` chooses it.

As a role, the connections of the test's store have the rights of ``writer`` or ``drainer`` and no others. What belongs
to somebody else is done as that role, on the same store: set-up as the owner, transactions as a writer, clean-up as a
drainer, decisions about dead letters as an application. SQL of the test itself runs as the owner.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
import pytest
from sqlalchemy import event

if TYPE_CHECKING:
    from export_queue import Store

VARIABLE = "EXPORT_QUEUE_TEST_WAY"
PGBOUNCER = "pgbouncer"
ROLES = ("writer", "drainer")
OWNER = "owner"
_TESTS = str(Path(__file__).parents[1])
_SUBJECTS = ("test_locks.py", "test_lock_box.py")
"""Files whose own blocks on the store's database are what is tested."""
_LISTED = {
    OWNER: "create adopt configure_queue alter_queue configure_table subscribe unsubscribe rebind waive_first_load "
    "declare_complete forget_invalid",
    "application": "compact replay first_load mirror close_idempotency_key",
    "writer": "transaction run begin resume commit abort outcome token process_notifications watch observe",
    "drainer": "maintain",
}
"""Methods of a store, by the role that calls them."""
AS_OWNER = (
    "test_a_swept_long_transaction_is_invalid_until_it_is_pruned",
    "test_what_commits_into_a_chunk_between_its_reading_and_its_removal_stays",
)
"""Tests that call functions of several roles without a store's method, by name; their stores have all rights."""
_LETTERS = {"application": "retry drop give_up_file fall_back", "drainer": "list count audit"}
"""The same of its dead letters."""


def chosen() -> str:
    """Return the way that the environment chooses; empty for the usual one."""
    way = os.environ.get(VARIABLE, "")
    if way not in ("", PGBOUNCER, *ROLES):
        raise pytest.UsageError(f"{VARIABLE}: expected {PGBOUNCER}, {' or '.join(ROLES)}, found {way!r}")
    return way


def chosen_role() -> str | None:
    """Return the role that the environment chooses."""
    return way if (way := chosen()) in ROLES else None


def name_of(role: str) -> str:
    """Return the name of a role in the server of the tests; it must be quoted."""
    return f'test "{role}"'


def create_roles(url: str, schema: str) -> None:
    """Create the roles of a server, unless they exist, and give them their rights on a store."""
    from export_queue.core.store import RIGHTS, grants, quoted

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
        for role, rights in RIGHTS.items():
            with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                admin.execute(f"create role {quoted(name_of(role))}".encode())
            for statement in grants(rights, schema, name_of(role)):
                admin.execute(statement.encode())


class _Acting(threading.local):
    """Whose rights the connections have that a thread takes."""

    role: str | None = None


_acting = _Acting()


@contextlib.contextmanager
def acting(role: str) -> Iterator[None]:
    """Take connections with the rights of a role, in this thread during a block."""
    before, _acting.role = _acting.role, role
    try:
        yield
    finally:
        _acting.role = before


def limit_to_role(store: Store, role: str) -> None:
    """Give the connections of a store the rights of a role, or of whoever a thread acts as."""
    from export_queue.core.store import quoted

    held: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    pool = store.database.pool

    def assume(raw: Any) -> None:
        wanted = _acting.role or role
        if held.get(raw) != wanted:
            raw.execute(b"reset role" if wanted == OWNER else f"set role {quoted(name_of(wanted))}".encode())
            if not raw.autocommit:
                raw.commit()  # a rollback would bring the former role back
            held[raw] = wanted

    @event.listens_for(store.database.engine, "checkout")
    def _lent(raw: Any, record: object, proxy: object) -> None:
        assume(raw)

    check_out = pool.check_out

    def checked_out() -> Any:
        loan = check_out()
        assume(loan.driver_connection)
        return loan

    pool.check_out = checked_out  # type: ignore[method-assign]


def share_the_work(patch: pytest.MonkeyPatch) -> None:
    """Let each role do its own part of what tests do with a store."""
    from export_queue import Store
    from export_queue.core.client.dead_letters import DeadLetters
    from export_queue.core.drain import local
    from export_queue.core.store import Database

    patch.setattr(local, "drain_as_requested", _as("drainer", local.drain_as_requested))
    for kind, listed in ((Store, _LISTED), (DeadLetters, _LETTERS)):
        for role, names in listed.items():
            for name in names.split():
                patch.setattr(kind, name, _as(role, getattr(kind, name)))
    for name in ("begin", "read", "connect"):
        patch.setattr(Database, name, _as_owner_in_tests(getattr(Database, name)))


def _as(role: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*plain: Any, **named: Any) -> Any:
        with acting(role):
            answer = method(*plain, **named)
        return _Block(answer, role) if isinstance(answer, contextlib.AbstractContextManager) else answer

    return run


def _as_owner_in_tests(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(*plain: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        is_ours = caller.startswith(_TESTS) and Path(caller).name not in _SUBJECTS
        block = method(*plain, **named)
        return _Block(block, OWNER) if is_ours else block

    return run


class _Block(contextlib.AbstractContextManager[Any]):
    """A block whose thread acts as a role."""

    def __init__(self, block: contextlib.AbstractContextManager[Any], role: str) -> None:
        self._block = block
        self._acting = acting(role)

    def __enter__(self) -> Any:
        self._acting.__enter__()
        try:
            return self._block.__enter__()
        except BaseException:
            self._acting.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> Any:
        try:
            return self._block.__exit__(*error)
        finally:
            self._acting.__exit__(None, None, None)
