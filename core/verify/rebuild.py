"""Rebuilds: a second target of a queue is filled, follows, is verified, and takes the place of the first one.

The new target belongs to a subscription of its own. Ordinary drains fill it, so that everything that drains guarantee
holds for it too. Each step records where it is before it changes something outside of the store, and may be repeated
after it was killed. See docs/decisions/0018-a-rebuild-is-a-second-reader.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from export_queue.core.drain import (
    COPY,
    DRAIN_RETRY,
    DrainRequest,
    StoreHandle,
    admit,
    ask_sink,
    binding_with,
    drain,
    load_exporter,
    opened_exporter,
)
from export_queue.core.errors import (
    InvalidArgument,
    LeaseLost,
    QueueBusy,
    RebuildRefused,
    RegistrationLost,
    SinkBindingError,
    SinkConfigurationError,
    UnknownQueue,
)
from export_queue.core.locks import DRAIN_PRIORITY, Area, LeaseKeeper, Owner, acquire, renew
from export_queue.core.queue import (
    Queue,
    bind_sink,
    find_queue,
    find_reader,
    in_all_layouts,
    subscribe,
    subscriptions,
    unsubscribe,
    user_at_host,
)
from export_queue.core.sinks import (
    FencedSink,
    PointingSink,
    ScannableSink,
    SearchableSink,
    Sink,
    SinkSpec,
    check_template,
    fill,
    opened_sink,
)
from export_queue.core.sources import STATE, begun_first_load, find_source, load_from
from export_queue.core.store import Database, Work, queries, removed_subscription
from export_queue.core.verify.rebuild_record import Rebuild, Step, find_rebuild, next_name
from export_queue.core.verify.verifying import verify

log = logging.getLogger("export_queue.rebuild")

LEASE_SECONDS = 30.0
"""How long a killed step keeps drains of the other target out, unless the step is repeated before."""
POINTER = "${collection}_now"
"""The default pointer, a name that every sink takes."""
_EXPORTER = "exporter"
_REVOKE_AFTER = 10.0
"""Seconds after which compactions lose their locks to a step that changes pointers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRequest:
    """What ``start`` is asked for; see :meth:`Rebuilds.start`."""

    reader: str
    new_options: Mapping[str, Any]
    pointer: str = POINTER
    exporter: str | None = None
    name: str | None = None
    source: str = STATE
    collections: Sequence[str] = ()
    who: str = ""


def start(store: StoreHandle, sink: SinkSpec, request: RebuildRequest, *, settle_timeout: float) -> Rebuild:
    """Start a rebuild, or continue one that was started with the same arguments."""
    database = store.database
    with database.read() as work:
        reader = find_queue(work, request.reader)
        row = queries.rebuilds.find(work, request.reader)
    _check_reader(database, reader, sink)
    with _opened(sink, json.loads(reader.binding or "")) as old, _opened_new(sink, reader, request) as (new, exporter):
        record = _requested(reader, request, binding_with(new, exporter))
        is_new = row is None or row["phase"] in queries.rebuilds.OVER
        if not is_new:
            _continue(database, record)
        _check_targets(record, old, new)
        if is_new:
            _check_new(database, record, new)
            _record(database, record)
        _continue(database, record)
        new_reader = _subscribe(store, record, sink, new)
        missing = [one for one in record.pointers if old.pointed_at(one) is None]
        if missing:
            old.point({one: record.pointers[one] for one in missing})
        for pointer in record.pointers:  # read through the other sink: a rebuild stays in one server
            if new.pointed_at(pointer) is None:
                raise SinkConfigurationError(f"{new} lacks the pointer {pointer!r}, which was made in {old}")
    if new_reader.first_load == "missing":
        _load(database, record, settle_timeout)
    return _move(database, record, "following", before={"filling", "following"}, step=uuid.uuid4().hex)


def switch(store: StoreHandle, reader: str, sink: SinkSpec, *, force: bool, lock_timeout: float) -> Rebuild:
    """Let the pointers lead to the new target, once it equals the queue and has all that the old target has."""
    record = find_rebuild(store.database, reader, "switch")
    if record.phase == "switched":
        return record
    spec = _spec_of(store.database, record.new_reader, sink)
    _catch_up(store, record, record.new_reader, spec, force=force, lock_timeout=lock_timeout)
    if not force:
        _require_equal(store, record, spec)
    return _turn(store, record, sink, to=record.new_reader, step="switch", force=force, lock_timeout=lock_timeout)


def back(store: StoreHandle, reader: str, sink: SinkSpec, *, lock_timeout: float) -> Rebuild:
    """Let the pointers lead to the old target again, once it has all that the new one has."""
    record = find_rebuild(store.database, reader, "back")
    if record.phase == "following":
        return record
    spec = _spec_of(store.database, record.reader, sink)
    _catch_up(store, record, record.reader, spec, force=True, lock_timeout=lock_timeout)
    return _turn(store, record, sink, to=record.reader, step="back", force=True, lock_timeout=lock_timeout)


def finish(store: StoreHandle, reader: str, *, who: str) -> Rebuild:
    """Remove the old reader. Its target stays, and no longer follows."""
    record = find_rebuild(store.database, reader, "finish")
    return _remove(store.database, record, record.reader, ("finishing", "finished"), {"switched"}, who)


def cancel(store: StoreHandle, reader: str, *, who: str) -> Rebuild:
    """Remove the new reader. Its target stays, and no longer follows."""
    record = find_rebuild(store.database, reader, "cancel")
    return _remove(
        store.database, record, record.new_reader, ("cancelling", "cancelled"), {"filling", "following"}, who
    )


def _check_reader(database: Database, reader: Queue, sink: SinkSpec) -> None:
    if reader.parent is None:
        with database.read() as work:
            known = [one.id for one in subscriptions(work, reader.id)]
        name = reader.id
        raise InvalidArgument(
            f"a rebuild replaces the target of a subscription, found queue {name!r}",
            hint=f"name one of {', '.join(known)}"
            if known
            else f"let the queue have subscriptions: drain it, then export-queue subscribe {name} main and "
            f"export-queue waive-first-load {name}/main; from then on drain {name}/main into the same sink",
        )
    if reader.binding is None or reader.sink is None:
        raise InvalidArgument(
            f"subscription {reader.id!r} has not been drained: its target is not known", hint="drain it first"
        )
    if reader.sink != sink.name:
        raise SinkBindingError(
            f"subscription {reader.id!r} drains into sink {reader.sink!r}, found {sink.name!r}",
            hint="name the sink of the subscription, or give the sink's name (--sink-name)",
        )


@contextlib.contextmanager
def _opened(sink: SinkSpec, binding: Mapping[str, Any]) -> Iterator[PointingSink]:
    """Open the sink with a binding.

    :raises SinkConfigurationError: it has no pointers, or cannot be compared.
    """
    with opened_sink(sink.bound_to({name: one for name, one in binding.items() if name != _EXPORTER})) as opened:
        if not isinstance(opened, PointingSink) or not isinstance(opened, ScannableSink):
            raise SinkConfigurationError(
                f"sink {sink.name!r}, a {type(opened).__name__}, cannot be rebuilt: it has no pointers, or no scan",
                hint="sinks with pointers are redis, elasticsearch, opensearch and sql; rebuild the parts of a "
                "composite sink as subscriptions of their own",
            )
        yield opened


@contextlib.contextmanager
def _opened_new(sink: SinkSpec, reader: Queue, request: RebuildRequest) -> Iterator[tuple[PointingSink, str]]:
    """Open the new target; return also the name of its exporter."""
    if not isinstance(request.new_options, Mapping):
        raise InvalidArgument(f"new_options: expected names and values, found {type(request.new_options).__name__}")
    bound = json.loads(reader.binding or "")
    options = {name: one for name, one in bound.items() if name != _EXPORTER} | dict(request.new_options)
    former = None if bound[_EXPORTER] == COPY else bound[_EXPORTER]
    found = load_exporter(request.exporter or former)
    with _opened(sink, options) as new, opened_exporter(found, DRAIN_RETRY) as exporter:
        if "<" in exporter.identity:
            raise InvalidArgument(f"exporter: expected an import path, found {exporter.identity}")
        _check_options(request, binding_with(new, exporter.identity))
        yield new, exporter.identity


def _check_options(request: RebuildRequest, binding: Mapping[str, Any]) -> None:
    """Refuse new options that are not stored with the new reader: its drains would not use them.

    :raises InvalidArgument: the error names them.
    """
    known = binding.keys() - {"kind", _EXPORTER}
    if others := sorted(request.new_options.keys() - known):
        raise InvalidArgument(
            f"new_options: expected options that decide which record is written, {', '.join(sorted(known))}; found "
            f"{', '.join(map(repr, others))}",
            hint="others are those of the sink, and the same for both targets",
        )


def _requested(reader: Queue, request: RebuildRequest, binding: Mapping[str, Any]) -> Rebuild:
    """Describe a rebuild as it is asked for.

    :raises InvalidArgument: the pointers cannot be told apart.
    """
    template = check_template(request.pointer, lambda name: None if name else "it is empty", what="pointer")
    collections = list(request.collections) or [reader.source]
    pointers = {fill(template, collection): collection for collection in collections}
    if len(pointers) < len(collections):
        raise InvalidArgument(
            f"pointer {request.pointer!r}: {len(collections)} collections would have {len(pointers)} pointers",
            hint="write $collection into it",
        )
    name = request.name or next_name(reader.id.partition("/")[2])
    now = datetime.fromtimestamp(0, UTC)  # the store records the time
    return Rebuild(
        reader=reader.id,
        new_reader=f"{reader.source}/{name}",
        phase="filling",
        pointers=pointers,
        source=request.source,
        binding=binding,
        who=request.who or user_at_host(),
        begun=now,
        changed=now,
    )


def _check_targets(record: Rebuild, old: PointingSink, new: PointingSink) -> None:
    """Check that the two targets differ, and that no pointer is one of them or leads elsewhere.

    :raises SinkConfigurationError: the error names the target or the pointer.
    """
    for pointer, collection in record.pointers.items():
        targets = [old.target(collection), new.target(collection)]
        if targets[0] == targets[1]:
            raise SinkConfigurationError(
                f"the new target of {record.reader!r} is the old one, {targets[0]!r}",
                hint="name another index, table or key in the new options",
            )
        found = old.pointed_at(pointer)
        if pointer in targets or found not in (None, *targets):
            raise SinkConfigurationError(
                f"pointer {pointer!r} of {old}: expected one that leads to {targets[0]!r} or does not exist, found "
                + ("a target" if pointer in targets else f"one that leads to {found!r}"),
                hint="give the pointer another name",
            )


def _check_new(database: Database, record: Rebuild, new: PointingSink) -> None:
    """Check that a rebuild may start: its reader is new, its target empty, its source there."""
    with database.read() as work:
        if queries.queues.queue_row(work, record.new_reader) is not None:
            raise InvalidArgument(
                f"subscription {record.new_reader!r} exists already", hint="give the new one another name (--name)"
            )
        queue = find_queue(work, record.reader.partition("/")[0])
        sink = find_queue(work, record.reader).sink
        others = [one.id for one in subscriptions(work, queue.id) if one.sink == sink and _has_binding(one, record)]
    if others:
        raise SinkConfigurationError(
            f"the new target of {record.reader!r} belongs to {', '.join(others)}",
            hint="name another index, table or key in the new options",
        )
    source = find_source(record.source)
    if record.source == STATE:
        with source.open(database, queue):
            pass
    for page in cast(ScannableSink, new).scan(sorted(set(record.pointers.values()))):
        if any(document is not None for document in page.documents):
            raise SinkConfigurationError(
                f"the new target of {record.reader!r} has records already: {', '.join(sorted(set(page.targets)))}",
                hint="remove it, or name another one: records that were deleted since would stay in it",
            )


def _has_binding(reader: Queue, record: Rebuild) -> bool:
    return reader.binding is not None and json.loads(reader.binding) == record.binding


def _record(database: Database, record: Rebuild) -> None:
    row = {"reader": record.reader, "new_reader": record.new_reader, "phase": record.phase, "step": uuid.uuid4().hex}
    with database.begin() as work:
        queries.readers.hold(work, find_queue(work, record.reader).number)
        queries.rebuilds.add(work, row | {"options": record.options(), "who": record.who})
    log.info("%s started: %s", record.who, record.line())


def _continue(database: Database, record: Rebuild) -> None:
    """Check that the recorded rebuild is the one that is asked for."""
    found = find_rebuild(database, record.reader, "start")
    if found.new_reader != record.new_reader or found.options() != record.options():
        raise InvalidArgument(
            f"a rebuild of {record.reader!r} has been started with other arguments: {found.new_reader}, "
            f"{found.options()}",
            hint="continue it with these, or "
            + ("finish it" if found.phase == "switched" else "cancel it")
            + f": export-queue rebuild {'finish' if found.phase == 'switched' else 'cancel'} {record.reader}",
        )


def _subscribe(store: StoreHandle, record: Rebuild, sink: SinkSpec, new: PointingSink) -> Queue:
    """Add the new reader, bound to the new target at once: a drain of an unbound reader would bind it to the old one.

    :raises SinkBindingError: somebody else has added the subscription, or changed its binding.
    """
    database, (queue_id, _, name) = store.database, record.new_reader.partition("/")
    request, binding = DrainRequest(queue_id=record.new_reader, sink_name=sink.name), json.dumps(record.binding)

    def show(fence: int) -> None:
        ask_sink(cast(Sink, new), request, queue_id=record.new_reader, store_id=store.id, fence=fence, shown=0)

    with database.read() as work:
        is_known = queries.queues.queue_row(work, record.new_reader) is not None
    fence = None if is_known else admit(database, show)  # a known reader's sink may have lost data: its drains find out

    def bind(work: Work, reader: Queue) -> None:
        if fence is None:
            raise removed_subscription(f"subscription {reader.id!r}")
        bind_sink(work, reader, sink.name)
        queries.queues.note_fence(work, reader.number, sink.name, fence)
        queries.queues.alter_queue(work, reader.number, binding=binding)

    reader = subscribe(database, queue_id, name, also=bind)
    if reader.binding != binding:
        raise SinkBindingError(
            f"subscription {reader.id!r}: expected the binding of the rebuild, {binding}, found {reader.binding}",
            hint=f"unsubscribe {reader.id} and start the rebuild again, or cancel it: export-queue rebuild cancel "
            f"{record.reader}",
        )
    return reader


def _load(database: Database, record: Rebuild, settle_timeout: float) -> None:
    """Make the first load of the new reader, unless another start makes it meanwhile."""
    try:
        with begun_first_load(database, record.new_reader, settle_timeout=settle_timeout) as (opened, reader):
            load_from(opened, reader, record.source)
    except (InvalidArgument, RegistrationLost):
        with database.read() as work:
            if find_reader(work, record.new_reader).first_load != "made":
                raise


def _spec_of(database: Database, reader: str, sink: SinkSpec) -> SinkSpec:
    """Describe the target of a reader: the sink, with the options of the reader's binding."""
    with database.read() as work:
        found = find_reader(work, reader)
    if found.binding is None or found.sink != sink.name:
        raise SinkBindingError(f"subscription {reader!r} drains into sink {found.sink!r}, found {sink.name!r}")
    return sink.bound_to({name: one for name, one in json.loads(found.binding).items() if name != _EXPORTER})


def _require_equal(store: StoreHandle, record: Rebuild, spec: SinkSpec) -> None:
    """Refuse to switch to a target that differs from the queue.

    :raises RebuildRefused: the error has the differences.
    """
    report = verify(store, record.new_reader, spec, source=record.source)
    if report.differences or report.dead:
        raise RebuildRefused(
            f"rebuild of {record.reader!r}: expected a new target without differences and dead letters, found\n"
            + "\n".join(report.lines()),
            hint=f"mend them and switch again; to switch nevertheless: --force, or force=True. See also: "
            f"export-queue dead list {record.new_reader}",
        )


def _turn(
    store: StoreHandle, record: Rebuild, sink: SinkSpec, *, to: str, step: Step, force: bool, lock_timeout: float
) -> Rebuild:
    """Let the pointers lead to the target of one of the two readers.

    Its reader is drained while the other one is held, so that the target has everything that readers may have seen in
    the other one. The caller has drained it before, so that little is left.
    """
    database, run = store.database, uuid.uuid4().hex
    via, after = ("switching", "switched") if step == "switch" else ("returning", "following")
    other = record.reader if to == record.new_reader else record.new_reader
    spec = _spec_of(database, to, sink)
    with _held(database, other, lock_timeout) as (held, check), opened_sink(spec) as opened:
        _catch_up(store, record, to, spec, force=force, lock_timeout=lock_timeout)
        _show(opened)
        pointing = _move(database, record, via, before=_turning_from(step), step=run, held=held)
        check()
        cast(PointingSink, opened).point(pointing.pointers)
        return _move(database, record, after, before={via}, step=run, of_step=True)


def _turning_from(step: Step) -> set[str]:
    return {"following", "switching", "returning"} if step == "switch" else {"switched", "switching", "returning"}


def _catch_up(
    store: StoreHandle, record: Rebuild, reader: str, spec: SinkSpec, *, force: bool, lock_timeout: float
) -> None:
    """Deliver everything that was committed before this call to the target of a reader."""
    owner = Owner(f"rebuild of {record.reader}, drain of {reader}")  # takes over from a run that was killed
    report = drain(store, reader, spec, owner=owner, lock_timeout=lock_timeout)
    if report.dead and not force:
        raise RebuildRefused(
            f"rebuild of {record.reader!r}: {report.dead} entries of {reader!r} became dead letters",
            hint=f"see export-queue dead list {reader}; to switch nevertheless: --force, or force=True",
        )


def _show(sink: Sink | FencedSink) -> None:
    """Let searches see what was acknowledged."""
    if isinstance(sink, SearchableSink):
        sink.refresh()


@contextlib.contextmanager
def _held(database: Database, reader: str, lock_timeout: float) -> Iterator[tuple[Queue, Callable[[], None]]]:
    """Keep drains of a reader out, so that its target does not change; yield it, and a check that they still are.

    A repeated step takes over from a killed one at once.
    """
    with database.read() as work:
        queue = in_all_layouts(work, find_reader(work, reader))
    with contextlib.ExitStack() as stack:
        keepers: list[LeaseKeeper] = []
        for layout in queue.layouts():
            leases = acquire(
                database,
                queue.in_layout(layout.number),
                [Area(0, layout.buckets)],
                owner=Owner(f"rebuild, {reader} held in layout {layout.number}"),
                priority=DRAIN_PRIORITY,
                lease_seconds=LEASE_SECONDS,
                wait_seconds=lock_timeout,
                revoke_after=_REVOKE_AFTER,
            )
            claimed_at = time.monotonic()
            renew(database, leases, lease_seconds=LEASE_SECONDS)  # waiting may have taken long
            keeper = LeaseKeeper(database, leases, lease_seconds=LEASE_SECONDS, claimed_at=claimed_at)
            keepers.append(stack.enter_context(keeper))

        def check() -> None:
            for keeper in keepers:
                keeper.check()

        yield queue, check


def _move(
    database: Database,
    record: Rebuild,
    phase: str,
    *,
    before: set[str],
    step: str,
    of_step: bool = False,
    held: Queue | None = None,
) -> Rebuild:
    """Record a phase, and return the rebuild as it is then.

    :param held: a reader that must still have the buckets in which it is held. They stay while pointers change.
    :raises LeaseLost: another run of a step has changed the phase meanwhile.
    :raises QueueBusy: the buckets have been altered.
    """
    with database.begin() as work:
        if held is not None:
            _require_layout(work, held)
        moved = queries.rebuilds.move(work, record.reader, phase, before=before, step=step, of_step=of_step)
    found = find_rebuild(database, record.reader)
    if not moved:
        raise LeaseLost(
            f"rebuild of {record.reader!r}: another step has changed it meanwhile, it is {found.phase} now",
            hint=f"see export-queue rebuild status {record.reader}, and repeat the step that you want",
        )
    if phase != record.phase:
        log.info("%s", found.line())
    return found


def _require_layout(work: Work, held: Queue) -> None:
    """Require that nobody has altered the buckets of a reader. Alterations wait until the SQL transaction ends."""
    queries.locks.serialise_requests(work, held.number, queue_id=held.id)
    if find_reader(work, held.id).layout != held.layout:
        raise QueueBusy(
            f"the buckets of {held.id!r} have been altered meanwhile, so that its drains are not kept out",
            hint="repeat the step",
        )


def _remove(
    database: Database, record: Rebuild, reader: str, phases: tuple[str, str], before: set[str], who: str
) -> Rebuild:
    """Remove one of the two readers, with its pending entries."""
    via, after = phases
    if record.phase == after:
        return record
    run = uuid.uuid4().hex
    _move(database, record, via, before={*before, via}, step=run)
    with database.read() as work:
        row = queries.queues.queue_row(work, reader)
    _move(database, record, via, before={via}, step=run, of_step=True)  # so the row is not of a later rebuild
    if row is not None:
        queue_id, _, name = reader.partition("/")
        with contextlib.suppress(UnknownQueue):  # another run has removed it
            unsubscribe(database, queue_id, name, number=row["number"], discard=True, who=who)
    return _move(database, record, after, before={via}, step=run, of_step=True)
