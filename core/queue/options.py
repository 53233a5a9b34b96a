"""Configuring a queue: its options are checked and stored, or compared with the stored ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from export_queue.core.codecs import KEYS, VALUES, check_codec
from export_queue.core.errors import InvalidArgument, OptionsDiffer
from export_queue.core.queue.buckets import FIRST_LAYOUT
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.stored_queues import COLUMNS, add_reader, find_queue, queue_of_row, readers_of
from export_queue.core.store import Database, queries
from export_queue.core.tables import check_name

MAX_BUCKETS = 1_000_000
LATEST = "latest"
"""Value of the option ``coalesce``: compactions keep only the latest entry of each key."""
MAX_VALUE_BYTES = 64 << 20
FIXED = ("key", "value")
"""Options of a queue that cannot be altered: every entry, stored or on its way, was made by them."""
log = logging.getLogger("export_queue.queue")


def configure_queue(
    database: Database,
    queue_id: str,
    *,
    buckets: int = 1009,
    buckets_per_range: int | None = None,
    key: str = "str",
    value: str = "json",
    max_value_bytes: int = 1 << 20,
    exclusive: bool = False,
    coalesce: str | None = None,
    subscriptions: Sequence[str] | None = None,
) -> Queue:
    """Store a queue's options; the same options again change nothing.

    :param queue_id: 1–64 characters of ``a-z 0-9 _ . -``.
    :param buckets: number of buckets; a prime spreads keys well.
    :param buckets_per_range: buckets of one unit: what one lock, and at most one task at a time, works on; by default
        a tenth of the buckets, so that there are ten units.
    :param key: codec of keys: ``str``, ``int``, ``bytes``, or the import path ``module:name`` of an object with
        ``encode(value) -> bytes`` and ``decode(bytes) -> value``.
    :param value: codec of values: ``json``, ``str``, ``int``, ``bytes``, or an import path.
    :param max_value_bytes: largest encoded value.
    :param exclusive: make every key a conflict key, for keys that are not tied to a cell that the transaction writes.
    :param coalesce: what a compaction keeps of the entries of a key that it merges: ``latest`` keeps the one with the
        highest sequence, None keeps all.
    :param subscriptions: names of the readers that a new queue has, each of which gets every entry; None says nothing
        about them.
    :raises InvalidArgument: an option is out of bounds.
    :raises CodecError: an import path leads to no codec.
    :raises OptionsDiffer: the queue exists with other options, which are listed. Buckets and units that it had before
        it was altered are only warned of.
    """
    check_name("queue id", queue_id)
    check_codec("key", key, KEYS)
    check_codec("value", value, VALUES)
    check_number("buckets", buckets, MAX_BUCKETS)
    if buckets_per_range is None:
        buckets_per_range = -(-buckets // 10)
    check_number("buckets_per_range", buckets_per_range, buckets)
    check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    check_coalesce(coalesce)
    wanted = {
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
        "key": key,
        "value": value,
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
        "coalesce": coalesce,
    }
    names = None if subscriptions is None else check_names(subscriptions)
    with database.read() as work:
        row = queries.queues.queue_row(work, queue_id)
    if row is None:
        with database.begin() as work:
            stored = {COLUMNS.get(name, name): option for name, option in wanted.items()}
            added = queries.queues.add_queue(work, {"id": queue_id, "layout": FIRST_LAYOUT, "sink": None, **stored})
            if added and names:
                # Nobody can have added to it: its readers lack nothing.
                parent = find_queue(work, queue_id)
                queries.queues.alter_queue(work, parent.number, fans_out=True, sink=None, binding=None)
                for name in names:
                    add_reader(work, parent, name, first_load=None)
            row = queries.queues.queue_row(work, queue_id)
    assert row is not None
    with database.read() as work:
        found = queue_of_row(work, row)
        former = queries.layouts.former(work, found.source_number, before=found.layout)
    laid_out, now = (buckets, buckets_per_range), (found.buckets, found.buckets_per_range)
    if laid_out != now and laid_out in [layout[1:] for layout in former]:
        log.warning(
            "queue %r has had %d buckets, %d a unit, and stays as it was altered since: %d, %d a unit",
            queue_id,
            *laid_out,
            *now,
        )
        del wanted["buckets"], wanted["buckets_per_range"]
    differing = {name: option for name, option in wanted.items() if getattr(found, name) != option}
    if differing:
        listed = (f"{name}: expected {option!r}, found {getattr(found, name)!r}" for name, option in differing.items())
        raise OptionsDiffer(
            f"queue {queue_id!r} exists with other options: {'; '.join(listed)}", hint=_remedy(queue_id, differing)
        )
    if names is not None:
        _compare_names(database, found, names)
    return found


def check_coalesce(coalesce: object) -> None:
    """Check the option ``coalesce`` before it is stored.

    :raises InvalidArgument: it is neither None nor ``latest``.
    """
    if coalesce is not None and coalesce != LATEST:
        raise InvalidArgument(f"coalesce: expected {LATEST!r} or None, found {coalesce!r}")


def check_names(subscriptions: Sequence[str]) -> list[str]:
    """Check the names of a queue's subscriptions.

    :raises InvalidArgument: one is no name, or is given twice.
    """
    if isinstance(subscriptions, str):
        raise InvalidArgument(f"subscriptions: expected a list of names, found {subscriptions!r}")
    names = sorted(check_name("subscription", name) for name in subscriptions)
    if len(set(names)) < len(names):
        raise InvalidArgument(f"subscriptions: expected each name once, found {names}")
    return names


def _compare_names(database: Database, queue: Queue, wanted: list[str]) -> None:
    with database.read() as work:
        found = sorted(reader.name for reader in readers_of(work, queue))
    if found != wanted:
        raise OptionsDiffer(
            f"queue {queue.id!r} exists with other subscriptions: expected {wanted}, found {found}",
            hint="add one by store.subscribe(queue_id, name), remove one by store.unsubscribe(queue_id, name); on the "
            f"command line: export-queue subscribe {queue.id} NAME, export-queue unsubscribe {queue.id} NAME",
        )


def _remedy(queue_id: str, differing: Mapping[str, Any]) -> str:
    """Say how a queue gets the options that were asked for."""
    if fixed := [name for name in differing if name in FIXED]:
        named = " and ".join(fixed)
        return f"{named} of a queue cannot be altered: ask for the stored options, or configure another queue"
    flags = " ".join(
        f"--{'no-' if option in (False, None) else ''}{name.replace('_', '-')}"
        + ("" if option is None or isinstance(option, bool) else f" {option}")
        for name, option in differing.items()
    )
    return f"ask for the stored options, or alter the queue: export-queue alter {queue_id} {flags} --store …"


def check_number(name: str, number: int, most: int) -> None:
    """Check an option that is a number.

    :raises InvalidArgument: it is none from 1 to the most.
    """
    if type(number) is not int or not 1 <= number <= most:
        raise InvalidArgument(f"{name}: expected a whole number from 1 to {most}, found {number!r}")
