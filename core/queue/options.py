"""Configuring a queue: checking its options, and storing them or comparing them with the stored ones. Altering them.

=====================  ============================================================================================
option                 may be altered
=====================  ============================================================================================
``max_value_bytes``    at any time; it can be lowered from above 1 MiB only if no stored value is larger
``exclusive``          at any time
``coalesce``           at any time; also for one subscription alone, until its queue is altered again
``state``, ``history`` at any time
``buckets``,           at any time if all its sinks have the guard ``seq``: the queue gets a new layout
``buckets_per_range``  (:mod:`layouts`), and the older one drains out. Otherwise only while the queue is empty and
                       nobody works on it: a sink with the guard ``fence`` refuses late writers unit by unit, and the
                       claim of a new unit would not detect a late batch of an old unit
=====================  ============================================================================================

A subscription has the options of its queue, and is altered with it. A process that has used the queue sees the change
within a minute (:mod:`export_queue.core.client.catalogue`); the store determines at each commit where its entries go.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from export_queue.core.arguments import duration
from export_queue.core.codecs import KEYS, VALUES, check_codec
from export_queue.core.errors import InvalidArgument, LockNotAvailable, OptionsDiffer, QueueBusy
from export_queue.core.queue.buckets import FIRST_LAYOUT
from export_queue.core.queue.layouts import close_layouts
from export_queue.core.queue.queue import STATE, Queue
from export_queue.core.queue.read import ASSUMED_BYTES
from export_queue.core.queue.stored_queues import (
    COLUMNS,
    add_reader,
    children_of,
    find_queue,
    queue_of_row,
    readers_of,
    refuse_state,
)
from export_queue.core.queue.subscriptions import PATIENCE, shut_out_commits
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Work, queries
from export_queue.core.tables import check_name

MAX_BUCKETS = 1_000_000
LATEST = "latest"
"""A value of the option ``coalesce``: compactions keep only the latest entry of each key."""
MAX_VALUE_BYTES = 64 << 20
HISTORY = "1h"
"""How long a state keeps former values by default."""
_STATE_HINT = "the history is that of the state: state=True"
FIXED = ("key", "value")
"""Options that cannot be altered, because all existing entries depend on them."""
_LAYOUT = ("buckets", "buckets_per_range")
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
    state: bool = False,
    history: float | str | None = None,
) -> Queue:
    """Store a queue's options. The same options again change nothing.

    :param queue_id: 1–64 characters of ``a-z 0-9 _ . -``.
    :param buckets: number of buckets; a prime spreads keys well.
    :param buckets_per_range: buckets in a unit, which one lock covers and one task at a time works on; by default a
        tenth of the buckets, which gives ten units.
    :param key: codec of keys: ``str``, ``int``, ``bytes``, or the import path ``module:name`` of an object with
        ``encode(value) -> bytes`` and ``decode(bytes) -> value``.
    :param value: codec of values: ``json``, ``str``, ``int``, ``bytes``, or an import path.
    :param max_value_bytes: largest encoded value.
    :param exclusive: make every key a conflict key; for keys without a cell that the transaction writes, too.
    :param coalesce: which entries of a key a compaction keeps: ``latest`` keeps the one with the highest sequence, None
        keeps all.
    :param subscriptions: names of the readers of a new queue, each of which receives every entry; None leaves readers
        unspecified.
    :param state: whether the queue remembers the latest entry of each key: its state, see :meth:`Store.state`.
    :param history: how long the state keeps former values, in seconds or as text such as ``7d``; an hour by default. It
        can be read as of any time in between, and a reading may take so long.
    :raises InvalidArgument: an option is out of bounds.
    :raises CodecError: an import path leads to no codec.
    :raises OptionsDiffer: the queue exists with other options, which are listed. Buckets and units that it had before
        it was altered only cause a warning.
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
    history_ms = _history_ms(HISTORY if history is None else history) if state else None
    if history is not None and not state:
        raise InvalidArgument("history: expected with state=True, found without", hint=_STATE_HINT)
    wanted = {
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
        "key": key,
        "value": value,
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
        "coalesce": coalesce,
        "history_ms": history_ms,
    }
    names = None if subscriptions is None else check_names(subscriptions)
    with database.read() as work:
        row = queries.queues.queue_row(work, queue_id)
    if row is None:
        with database.begin() as work:
            stored = {COLUMNS.get(name, name): option for name, option in wanted.items()}
            added = queries.queues.add_queue(work, {"id": queue_id, "layout": FIRST_LAYOUT, "sink": None, **stored})
            if added and names:
                # Nobody can have added to it yet, so its readers lack nothing.
                parent = find_queue(work, queue_id)
                queries.queues.alter_queue(work, parent.number, fans_out=True, sink=None, binding=None)
                for name in names:
                    add_reader(work, parent, name, first_load=None)
            if added and history_ms is not None:
                _add_state(work, find_queue(work, queue_id), history_ms, first_load=None)
            row = queries.queues.queue_row(work, queue_id)
    assert row is not None
    with database.read() as work:
        found = queue_of_row(work, row)
        former = queries.layouts.former(work, found.source_number, before=found.layout)
    laid_out, now = (buckets, buckets_per_range), (found.buckets, found.buckets_per_range)
    if laid_out != now and laid_out in [layout[1:] for layout in former]:
        log.warning(
            "queue %r had %d buckets, %d in a unit, and was altered since; it keeps %d buckets, %d in a unit",
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


def _history_ms(history: float | str) -> int:
    return int(duration(history, what="history") * 1000)


def _add_state(work: Work, parent: Queue, history_ms: int, *, first_load: str | None) -> None:
    """Let a queue remember: from now on, each commit adds its entries to the state, too."""
    add_reader(work, parent, STATE, first_load=first_load, coalesce=LATEST, history_ms=history_ms, oldest_cut=0)
    queries.queues.alter_queue(work, parent.number, history_ms=history_ms)


def check_coalesce(coalesce: object) -> None:
    if coalesce is not None and coalesce != LATEST:
        raise InvalidArgument(f"coalesce: expected {LATEST!r} or None, found {coalesce!r}")


def check_names(subscriptions: Sequence[str]) -> list[str]:
    """Check and sort the names of a queue's subscriptions."""
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
            hint="add one with store.subscribe(queue_id, name), remove one with store.unsubscribe(queue_id, name); on "
            f"the command line: export-queue subscribe {queue.id} NAME, export-queue unsubscribe {queue.id} NAME",
        )


def _remedy(queue_id: str, differing: Mapping[str, Any]) -> str:
    """Describe how to get a queue with the requested options."""
    if "history_ms" in differing:
        return f"use the stored options, or alter the queue: store.alter_queue({queue_id!r}, state=…, history=…)"
    if fixed := [name for name in differing if name in FIXED]:
        named = " and ".join(fixed)
        return f"{named} of a queue cannot be altered: use the stored options, or configure another queue"
    flags = " ".join(
        f"--{'no-' if option in (False, None) else ''}{name.replace('_', '-')}"
        + ("" if option is None or isinstance(option, bool) else f" {option}")
        for name, option in differing.items()
    )
    return f"use the stored options, or alter the queue: export-queue alter {queue_id} {flags} --store …"


def check_number(name: str, number: int, most: int) -> None:
    if type(number) is not int or not 1 <= number <= most:
        raise InvalidArgument(f"{name}: expected a whole number from 1 to {most}, found {number!r}")


def alter_queue(
    database: Database,
    queue_id: str,
    *,
    max_value_bytes: int | None = None,
    exclusive: bool | None = None,
    coalesce: str | Literal[False] | None = None,
    buckets: int | None = None,
    buckets_per_range: int | None = None,
    guard: Literal["seq", "fence"] = "fence",
    state: bool | None = None,
    history: float | str | None = None,
    retry: Retry = PATIENCE,
) -> Queue:
    """Alter options of a queue. Options that are left out are not changed.

    :param queue_id: the queue; with ``coalesce`` alone also a subscription.
    :param max_value_bytes: largest encoded value from now on; stored entries stay.
    :param exclusive: whether every key added is a conflict key.
    :param coalesce: what later compactions keep of each key: ``latest`` its latest entry, False all entries.
    :param buckets: number of buckets; pending entries are drained from the previous buckets.
    :param buckets_per_range: buckets in a unit; likewise.
    :param guard: the guard of the queue's sinks. Buckets and units of a queue with entries can be altered only if it
        is ``seq``.
    :param state: whether the queue remembers the latest entry of each key. A state that begins lacks what was committed
        before, until its first load; a state that ends is deleted.
    :param history: how long the state keeps former values from now on, in seconds or as text such as ``7d``.
    :param retry: how long to wait for transactions that add to the queue, if buckets, units or the state are altered.
    :returns: the queue as it is stored now.
    :raises InvalidArgument: an option is out of bounds, or its stored entries do not allow the change; or the queue is
        a subscription.
    :raises LockNotAvailable: the guard is ``fence``, and somebody works on units of the queue.
    :raises QueueBusy: transactions that add to the queue were in progress all the time.
    """
    if guard not in ("seq", "fence"):
        raise InvalidArgument(f"guard: expected seq or fence, found {guard!r}")
    if max_value_bytes is not None:
        check_number("max_value_bytes", max_value_bytes, MAX_VALUE_BYTES)
    wanted = {
        "max_value_bytes": max_value_bytes,
        "exclusive": exclusive,
        "coalesce": coalesce,
        "buckets": buckets,
        "buckets_per_range": buckets_per_range,
        "state": state,
        "history_ms": None if history is None else _history_ms(history),
    }
    given = {name: option for name, option in wanted.items() if option is not None}

    def attempt() -> Queue:
        with database.begin() as work, queries.readers.brief_waits(work, queue_id):
            _alter(work, queue_id, given, guard)
            return find_queue(work, queue_id)

    altered = retry.call(attempt, worth_repeating=lambda error: isinstance(error, QueueBusy))
    if altered.older:  # it may be empty
        close_layouts(database, altered)
        with database.read() as work:
            return find_queue(work, queue_id)
    return altered


def _alter(work: Work, queue_id: str, given: Mapping[str, Any], guard: str) -> None:
    queries.locks.serialise_requests(work, find_queue(work, queue_id).number)  # as for its subscriptions below
    queue = find_queue(work, queue_id)
    refuse_state(queue)
    if queue.parent is not None and set(given) - {"coalesce"}:
        raise InvalidArgument(
            f"subscription {queue_id!r} has the options of its queue",
            hint=f"alter queue {queue.parent!r}: its subscriptions are altered with it",
        )
    coalesces, coalesce = "coalesce" in given, given.get("coalesce")
    if coalesces:
        coalesce = None if coalesce is False else coalesce
        check_coalesce(coalesce)
    own = ("coalesce", "state", "history_ms")
    changed = {name: given[name] for name in given if name not in own and getattr(queue, name) != given[name]}
    readers = sorted(children_of(work, queue), key=lambda reader: reader.number)
    for reader in readers:
        queries.locks.serialise_requests(work, reader.number)
    if "max_value_bytes" in changed:
        for one in (queue, *readers):
            _check_largest_value(work, one, changed["max_value_bytes"])
    if any(name in changed for name in _LAYOUT):
        changed["layout"] = _next_layout(work, queue, readers, changed, guard)
    for one in (queue, *readers):
        if changed:
            queries.queues.alter_queue(work, one.number, **changed)
        if coalesces and one.coalesce != coalesce and not one.is_state:
            queries.queues.alter_queue(work, one.number, coalesce=coalesce)
    if {"state", "history_ms"} & set(given):
        _alter_state(work, find_queue(work, queue_id), given)


def _alter_state(work: Work, queue: Queue, given: Mapping[str, Any]) -> None:
    """Begin or end the state of a queue, or change its history."""
    state, history_ms = given.get("state", queue.history_ms is not None), given.get("history_ms")
    if not state and history_ms is not None:
        raise InvalidArgument(f"history: expected a queue with a state, found {queue.id!r} without", hint=_STATE_HINT)
    found = next((one for one in children_of(work, queue) if one.is_state), None)
    if state and found is None:
        shut_out_commits(work, queue)
        _add_state(work, queue, _history_ms(HISTORY) if history_ms is None else history_ms, first_load="missing")
    elif state and found is not None and history_ms is not None:
        for one in (queue, found):
            queries.queues.alter_queue(work, one.number, history_ms=history_ms)
    elif not state and found is not None:
        shut_out_commits(work, queue)
        queries.readers.remove(work, found.number, found.id)
        queries.queues.alter_queue(work, queue.number, history_ms=None)


def _next_layout(work: Work, queue: Queue, readers: Sequence[Queue], changed: Mapping[str, Any], guard: str) -> int:
    """End the current layout of a queue and return the number of the next one."""
    buckets = changed.get("buckets", queue.buckets)
    check_number("buckets", buckets, MAX_BUCKETS)
    check_number("buckets_per_range", changed.get("buckets_per_range", queue.buckets_per_range), buckets)
    _require_no_turn(work, readers)
    # After everything else that waits for others. From here on nobody adds: all that is stored or staged is in the
    # ending layout, and was added by a transaction whose id has been drawn.
    shut_out_commits(work, queue)
    if guard == "fence":
        for one in (queue, *readers):
            _require_idle(work, one)
    ended = (queue.layout, queue.buckets, queue.buckets_per_range)
    queries.layouts.cease(work, queue.number, ended, is_closed=guard == "fence")
    return queue.layout + 1


def _require_no_turn(work: Work, readers: Sequence[Queue]) -> None:
    """Require that no rebuild is changing its pointers: it keeps drains of the other target out, in today's buckets."""
    if found := queries.rebuilds.turning(work, [one.id for one in readers]):
        raise QueueBusy(
            f"a rebuild of {', '.join(map(repr, found))} is changing its pointers",
            hint=f"if that step was interrupted, repeat it: export-queue rebuild status {found[0]} names it",
        )


def _check_largest_value(work: Work, queue: Queue, most: int) -> None:
    # drains plan their memory by the largest possible value
    if most < queue.max_value_bytes > ASSUMED_BYTES:
        largest = max(module.largest_value(work, queue.number) for module in (queries.entries, queries.segments))
        if largest > max(most, ASSUMED_BYTES):
            raise InvalidArgument(
                f"max_value_bytes of queue {queue.id!r}: expected at least {largest}, the size of a pending value "
                f"or dead letter, found {most}",
                hint="drain the queue first, and retry or drop its dead letters",
            )


def _require_idle(work: Work, queue: Queue) -> None:
    """Require that the queue is empty and nobody holds a lock. The caller blocks new entries and locks."""
    if found := queries.locks.of_queue(work, queue.number, now=work.now()):
        held = ", ".join(f"[{row['first_bucket']}, {row['end_bucket']}) by {row['task']}" for row in found)
        raise LockNotAvailable(
            f"others work on units of queue {queue.id!r}: {held}",
            hint="wait for the drains to end, or stop them, then alter the queue again",
        )
    entries, dead, _ = queries.readers.count_rows(work, queue.number, locked_at=work.now())
    if queue.is_state and entries:
        raise InvalidArgument(
            f"buckets of queue {queue.parent!r}: expected a queue without a state, found one with {entries} entries",
            hint="the buckets of a queue that remembers can be altered only if all its sinks have the guard seq: pass "
            "guard='seq', or --guard seq on the command line",
        )
    if entries or dead:
        raise InvalidArgument(
            f"buckets of queue {queue.id!r}: expected an empty queue, found {entries} entries and {dead} dead letters",
            hint="if all its sinks have the guard seq, pass guard='seq', or --guard seq on the command line; "
            "otherwise drain the queue first, and retry or drop its dead letters",
        )
