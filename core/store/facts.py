"""What a server says about itself and about the role that asks, for diagnosis."""

from __future__ import annotations

from typing import NamedTuple

from export_queue.core.store.roles import Right


class ServerFacts(NamedTuple):
    """A PostgreSQL server as one session sees it."""

    version: str
    version_number: int
    """Such as 150004."""
    is_durable: bool
    """Whether an acknowledged commit survives a crash of the machine: ``fsync`` and ``full_page_writes`` are on."""
    is_read_only: bool
    """Whether transactions of this session may not write, by a setting of the role, database, server or URL."""
    max_connections: int
    """Connections that the server gives to roles without privileges."""
    connections: int
    """Connections in use, of all roles and databases."""
    database: str
    database_limit: int | None
    database_connections: int
    role: str
    role_limit: int | None
    role_connections: int
    is_own_session: bool
    """Whether the session is the server's own, and not one of a pooler."""


class Rights(NamedTuple):
    """What a role may do with the objects of a store."""

    schema: str
    role: str
    owner: str | None
    """The role that owns the store; None if the schema has no tables of a store."""
    is_owner: bool
    """Whether the role is the owner, or a member of it."""
    held: frozenset[Right]
    """Of the rights that roles of a store need, those that this role has. Missing objects are in neither set."""
    lacking: frozenset[Right]
    public: tuple[str, ...]
    """Functions with the owner's rights that everybody may execute."""
    may_public_create: bool = False
    """Whether everybody may create functions in the schema, which others would call instead of the store's."""
