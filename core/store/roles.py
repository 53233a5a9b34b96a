"""The roles of a store on PostgreSQL, and the rights of each, to be granted, checked and documented.

``owner`` has all rights by owning the schema and is not listed. Functions that run with the owner's rights (``security
definer``) are not for everybody: whoever may execute ``xq_commit_v1`` may add entries, without any right on tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from export_queue.core.store.schema import dead_letter, metadata
from export_queue.core.store.views import VIEWS

Kind = Literal["schema", "table", "column", "view", "sequence", "function"]
Role = Literal["application", "writer", "drainer", "reader"]
ROLES: tuple[Role, ...] = get_args(Role)


class Right(NamedTuple):
    """One privilege on one object of a store."""

    kind: Kind
    name: str
    """Of a column: ``table.column``; of the schema: empty, since stores have different ones."""
    privilege: str


TABLES = (*sorted(metadata.tables), "xq_change", "xq_server_life")
SEQUENCE = "xq_id"
LOCKED_IDS = "xq_locked_id"

_OF_TRANSACTIONS = (
    "xq_start_v1",
    "xq_start_limited_v1",
    "xq_checkpoint_v1",
    "xq_hold_long_v1",
    "xq_stage_v1",
    "xq_unstage_v1",
    "xq_empty_segments_v1",
    "xq_lock_keys_v1",
    "xq_commit_v1",
    "xq_abort_v1",
)
_OF_BOTH = ("xq_draw_v1", "xq_expire_v1")
_OF_CLEAN_UP = ("xq_prune_v1", "xq_forget_changes_v1")
DEFINERS = (*_OF_TRANSACTIONS, *_OF_BOTH, *_OF_CLEAN_UP)
"""Functions that run with the rights of the store's owner; nobody else may execute them unless it is granted."""
FUNCTIONS = {
    "snapshots": ("xq_take_snapshot_v1", "xq_unfinished_v1", "xq_require_primary_v1", "xq_server_life_v1"),
    "readers": ("xq_hold_readers_v1",),
    "locks": ("xq_lock_at_once_v1", "xq_release_locks_v1"),
    "others": (
        "xq_any_registered_v1",
        "xq_end_registration_v1",
        "xq_has_clock_stayed_v1",
        "xq_is_any_used_v1",
        "xq_hold_gate_v1",
        "xq_hold_registration_v1",
        "xq_publish_segments_v1",
        "xq_publish_staged_v1",
        "xq_queues_to_hold_v1",
        "xq_registration_fault_v1",
        "xq_require_store_v1",
        "xq_rollback_v1",
        "xq_set_floor_v1",
        "xq_try_readers_v1",
    ),
}
"""All other functions, by subject. Everybody may execute them unless the database's defaults forbid it. They do what
the caller's rights on tables allow."""

_WRITER: dict[str, str] = {
    "xq_store": "select",
    "xq_active": "select",
    "xq_invalid": "select",
    "xq_outcome": "select insert",
    "xq_idempotency": "select",
    "xq_table": "select insert",
    "xq_conflict_key": "select",
    "xq_cell": "select",
    "xq_notification": "select",
    "xq_observed": "select insert",
    "xq_observer_failure": "select insert update delete",
    "xq_staged_entry": "select",
    "xq_staged_cell": "select",
    "xq_queue": "select",
    "xq_layout": "select",
    "xq_entry": "select",
    "xq_load": "select insert update",
    "xq_segment": "select insert",
    "xq_segment_reader": "select",
    "xq_segment_done": "select",
    "xq_compacted": "select",
    "xq_dead_letter_audit": "select",
    "xq_low_watermark": "select",
    "xq_change": "select",
    "xq_cleaning": "select",
}
_DRAINER: dict[str, str] = {
    "xq_store": "select",
    "xq_active": "select",
    "xq_invalid": "select",
    "xq_outcome": "select delete",
    "xq_idempotency": "select insert update delete",
    "xq_table": "select",
    "xq_conflict_key": "select delete",
    "xq_cell": "select delete",
    "xq_queue": "select",
    "xq_layout": "select",
    "xq_removed_queue": "select delete",
    "xq_entry": "select delete",
    "xq_load": "select delete",
    "xq_segment": "select delete",
    "xq_segment_reader": "select delete",
    "xq_segment_done": "select insert update delete",
    "xq_compacted": "select delete",
    "xq_hidden_segment": "select delete",
    "xq_unused_file": "select insert delete",
    "xq_dead_letter": "select insert delete",
    "xq_dead_letter_audit": "select insert update delete",
    "xq_lock": "select insert update delete",
    "xq_lock_request": "select insert update delete",
    "xq_attempt": "select insert update delete",
    "xq_drain_report": "select insert delete",
    "xq_comparison": "select insert delete",
    "xq_sink_fence": "select insert update delete",
    "xq_low_watermark": "select insert update delete",
    "xq_cleaning": "select insert update",
}


def _rights(
    tables: Mapping[str, str], columns: Mapping[str, str], functions: Iterable[str], views: Iterable[str]
) -> frozenset[Right]:
    return frozenset(
        (
            Right("schema", "", "usage"),
            *(Right("table", table, one) for table, privileges in tables.items() for one in privileges.split()),
            *(Right("column", column, one) for column, privileges in columns.items() for one in privileges.split()),
            *(Right("view", view, "select") for view in (LOCKED_IDS, *views)),
            Right("sequence", SEQUENCE, "select"),
            *(Right("function", function, "execute") for function in functions),
        )
    )


RIGHTS: Mapping[Role, frozenset[Right]] = {
    "application": frozenset(
        (
            *_rights(
                dict.fromkeys(TABLES, "select insert update delete"),
                {},
                (*DEFINERS, *itertools.chain.from_iterable(FUNCTIONS.values())),
                VIEWS,
            ),
            *(Right("sequence", SEQUENCE, one) for one in ("usage", "update")),
        )
    ),
    "writer": _rights(
        _WRITER,
        {
            "xq_active.client": "update",
            "xq_active.mirrors": "update",
            # Whoever waits until a sink has an entry reads whether it is a dead letter, and why; not its value.
            **{f"xq_dead_letter.{one.name}": "select" for one in dead_letter.c if one.name != "value"},
        },
        (*_OF_TRANSACTIONS, *_OF_BOTH, *FUNCTIONS["snapshots"], *FUNCTIONS["readers"]),
        (),
    ),
    "drainer": _rights(
        _DRAINER,
        # Locking a row needs the right to change a column of it: those of xq_conflict_key and xq_segment_reader.
        {
            "xq_queue.binding": "update",
            "xq_queue.sink": "update",
            "xq_conflict_key.key": "update",
            "xq_segment_reader.number": "update",
            "xq_store.horizon": "update",
            "xq_store.expiry_ms": "update",
            "xq_layout.closed_ms": "update",
            "xq_load.ended_ms": "update",
            "xq_hidden_segment.hidden_ms": "update",
        },
        (*_OF_BOTH, *_OF_CLEAN_UP, *FUNCTIONS["snapshots"], *FUNCTIONS["readers"], *FUNCTIONS["locks"]),
        ("horizon_holders",),
    ),
    "reader": frozenset((Right("schema", "", "usage"), *(Right("view", view, "select") for view in VIEWS))),
}
"""What each role needs. The application's rights include those of all others."""
CHECKED = frozenset(itertools.chain.from_iterable(RIGHTS.values()))
"""Every right that any role needs."""


def nearest(held: Collection[Right]) -> tuple[tuple[Role, ...], frozenset[Right]]:
    """Find what somebody seems to be meant for, and which rights are missing for that.

    That is the application, or the fewest rights of a reader, a writer and a drainer that include all that are held.

    :param held: of :data:`CHECKED`.
    """
    special = {right for right in held if right.kind != "schema" and not _is_everybodys(right)}
    smaller: list[tuple[Role, ...]] = []
    if special:
        small: tuple[Role, ...] = ("reader", "writer", "drainer")
        smaller = [them for size in (1, 2, 3) for them in itertools.combinations(small, size)]
    for them in sorted(smaller, key=lambda them: len(_of(them))):
        if all(_includes(_of(them), right) for right in special):
            return them, _of(them).difference(held)
    return ("application",), RIGHTS["application"].difference(held)


def _of(them: tuple[Role, ...]) -> frozenset[Right]:
    return frozenset(itertools.chain.from_iterable(RIGHTS[role] for role in them))


def _includes(rights: Collection[Right], right: Right) -> bool:
    return right in rights or (
        right.kind == "column" and Right("table", right.name.partition(".")[0], right.privilege) in rights
    )


def _is_everybodys(right: Right) -> bool:
    return right.kind == "function" and right.name not in DEFINERS


def on_object(name: str) -> dict[Role, list[Right]]:
    """Find which rights the roles have on one object, by its name; those without any are left out."""
    found: dict[Role, list[Right]] = {
        role: [right for right in rights if right.name.partition(".")[0] == name] for role, rights in RIGHTS.items()
    }
    return {role: rights for role, rights in found.items() if rights}


def grants(rights: Collection[Right], schema: str, role: str) -> list[str]:
    """Return the statements that give a role some rights, without semicolons.

    :param role: the name of the role in the database.
    """
    named, to = quoted(schema), quoted(role)
    statements: list[str] = []
    for kind in get_args(Kind):
        by_privileges: dict[tuple[str, ...], list[str]] = {}
        if kind == "view" and any(" on all tables " in statement for statement in statements):
            continue  # views are among these tables
        of_kind = sorted(right for right in rights if right.kind == kind)
        for name, found in itertools.groupby(of_kind, key=lambda right: right.name):
            by_privileges.setdefault(tuple(sorted((one.privilege for one in found), key=_ORDER.index)), []).append(name)
        for privileges, names in by_privileges.items():
            statements += _grants_of(kind, privileges, names, named, to)
    return statements


_ORDER = ("usage", "select", "insert", "update", "delete", "execute")


def _grants_of(kind: Kind, privileges: tuple[str, ...], names: list[str], schema: str, to: str) -> list[str]:
    given = ", ".join(privileges)
    if kind == "schema":
        return [f"grant {given} on schema {schema} to {to}"]
    if kind == "column":
        by_table = itertools.groupby((name.split(".") for name in names), key=lambda one: one[0])
        return [
            f"grant {', '.join(f'{one} ({columns})' for one in privileges)} on table {schema}.{table} to {to}"
            for table, columns in ((table, ", ".join(column for _, column in of_it)) for table, of_it in by_table)
        ]
    if kind in _ALL and len(names) == len({right.name for right in RIGHTS["application"] if right.kind == kind}):
        return [f"grant {given} on all {_ALL[kind]} in schema {schema} to {to}"]
    word = "table" if kind == "view" else kind
    return [f"grant {given} on {word} {', '.join(f'{schema}.{name}' for name in names)} to {to}"]


_ALL: Mapping[Kind, str] = {"table": "tables", "function": "functions"}


def quoted(name: str) -> str:
    """Quote a name for a statement."""
    return '"' + name.replace('"', '""') + '"'
