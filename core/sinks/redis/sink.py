"""The Redis sink: reads ranks under WATCH, compares them here, writes records and ranks in one MULTI."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.core.sinks.batch import Reasons, apply_batch, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.control import admission
from export_queue.core.sinks.fencing import Claim, Guard, check_guard, unclaimed_error
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection
from export_queue.core.sinks.redis import fenced, layout, sweeping
from export_queue.core.sinks.redis.connection import Connection
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.layout import Command
from export_queue.core.sinks.redis.marks import Marks
from export_queue.core.sinks.redis.nodes import Nodes
from export_queue.core.sinks.redis.replicas import wait_for_replicas
from export_queue.core.sinks.redis.slots import check_marks, sweep_slots, write_by_slot
from export_queue.core.sinks.redis.targets import TARGETS, Kind, Records, decide

_MAX_COLLISIONS = 200
"""Tries of one batch that others spoilt, one after the other, before the sink counts as overloaded."""
_PAUSE_SECONDS = 0.02


class RedisSink:
    """Strings, hashes or members of sets in one Redis server or in a Redis Cluster; the server says which it is.

    :param host: the server's name or address; of a cluster that of any node.
    :param port: its port.
    :param db: number of the database.
    :param username: the user; None for the default one.
    :param password: the password, or a callable that returns it, asked at each new connection.
    :param ssl: whether to connect by TLS.
    :param ssl_options: further TLS options of redis-py's connection, ``ssl_ca_certs`` and so on.
    :param key: template of the records' keys, from ``{collection}`` and ``{id}``; a brace that belongs to the key is
        doubled, as in ``customer:{{{id}}}``.
    :param target: ``string``: a record is a string, its document. ``hash``: a record is a hash, the fields of its
        document. ``set``: the id ``<set>/<member>`` is one
        member of a set, ``{id}`` in the key is the set's name, and documents are not kept.
    :param shards: over how many hashes the ranks are spread; fixed by the first sink that writes to the
        database, and taken from there where it is left out. A cluster's ranks lie by slots.
    :param wait_replicas: how many replicas, of each primary in a cluster, must have a batch before it counts as
        acknowledged; they are waited for during half of ``socket_timeout``.
    :param socket_timeout: seconds to wait for an answer; a batch that takes longer counts as failed.
    :param socket_connect_timeout: seconds to wait for a connection.
    :param guard: what keeps late deliveries out: ``seq``, the rank of each record, or ``fence``, that of the drain.
    :raises SinkConfigurationError: an option is not valid.
    """

    capabilities = Capabilities(batch_rows=1000, batch_bytes=1 << 20, ttl=True)

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        username: str | None = None,
        password: str | Callable[[], str] | None = None,
        ssl: bool = False,
        ssl_options: Mapping[str, Any] | None = None,
        key: str = "{collection}:{id}",
        target: Kind = "string",
        shards: int | None = None,
        wait_replicas: int = 0,
        socket_timeout: float = 60.0,
        socket_connect_timeout: float = 10.0,
        guard: Guard = "seq",
    ) -> None:
        check_guard(guard)
        template = layout.check_template(key)
        if target not in TARGETS:
            raise SinkConfigurationError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
        for name, number in (("port", port), ("db", db), ("wait_replicas", wait_replicas)):
            if not isinstance(number, int) or number < 0:
                raise SinkConfigurationError(f"{name}: expected a number, found {number!r}")
        if shards is not None and not 1 <= shards <= 1 << 20:
            raise SinkConfigurationError(f"shards: expected 1 to {1 << 20}, found {shards}")
        self._is_fenced = guard == "fence"
        if self._is_fenced:
            self.capabilities = replace(self.capabilities, fenced=True)
        self._template = template
        self._target = TARGETS[target]
        self._wanted_shards = shards
        self._marks = Marks()
        self._wait_replicas = wait_replicas
        self._wait_seconds = socket_timeout / 2  # the server says how many there are before we give up on it
        self._shards: int | None = None
        self._lock = threading.Lock()

        def connect(host: str, port: int) -> Connection:
            return Connection(
                server=f"{host}:{port}",
                options={
                    "host": host,
                    "port": port,
                    "db": db,
                    "socket_timeout": socket_timeout,
                    "socket_connect_timeout": socket_connect_timeout,
                    "socket_keepalive": True,
                    "client_name": "export-queue",
                    **(ssl_options or {}),
                },
                ssl=ssl,
                username=username,
                password=password,
            )

        self._connect = connect
        self._connection = connect(host, port)
        self._nodes: Nodes | None = None
        """Of a cluster; None for a single server."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, drained: bool = False) -> None:
        """Check the server and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        key = layout.control_key(queue_id)
        with self._lock:
            self._prepare()
            joined = False
            marks = self._check_marks(key)
            for _ in range(_MAX_COLLISIONS):
                at = self._at(key.encode())
                _, (*fields, guard) = self._all(
                    ("WATCH", key), ("HMGET", key, *layout.CONTROL_FIELDS, fenced.GUARD), at=at
                )
                found = layout.read_control(fields)
                try:
                    fenced.check_queue(
                        guard, is_known=found is not None, is_fenced=self._is_fenced, queue_id=queue_id, sink=self
                    )
                    wanted = admission(
                        found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), drained=drained
                    )
                except Exception:
                    self._all(("UNWATCH",), at=at)
                    raise
                mark = (fenced.GUARD, "fence") if self._is_fenced else ()
                if not joined:  # only now: who is refused is not among the feeders
                    self._all(("UNWATCH",), at=at)
                    sweeping.join(partial(self._all, at=self._at(layout.CONTROL)), store_id=store_id, sink=str(self))
                    joined = True
                    continue
                write: Command = ("HSET", key, *layout.write_control(wanted), *marks, *mark)
                *_, done = self._all(("MULTI",), write, ("EXEC",), at=at)
                if done is not None:
                    self._wait()
                    return
        raise SinkUnavailable(f"{self}: the control record of queue {queue_id!r} changes all the time")

    def _check_marks(self, key: str) -> Command:
        """In a cluster, see that no primary has lost its data since the last drain, when their marks were noted.

        :returns: the field of the control record that notes them.
        """
        if self._nodes is None:
            return ()  # control record and data lie in one server, and go together
        (noted,) = self._all(("HGET", key, "marks"), at=self._at(key.encode()))
        self._marks.expect(noted)
        with self._looking_again():
            check_marks(self._nodes, self._marks)
        return ("marks", self._marks.to_text())

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        if self._is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, self._write)

    def claim(self, claims: Sequence[Claim]) -> None:
        """Take units over; see :class:`~export_queue.core.sinks.FencedSink`."""
        with self._lock:
            self._prepare()
            fenced.claim_units(self._all, claims, self)

    def apply_under(self, claim: Claim, operations: Operations) -> ApplyResult:
        """Apply a batch under a claim; see :class:`~export_queue.core.sinks.FencedSink`."""
        return self._apply(operations, partial(self._write_under, claim))

    def _apply(self, operations: Operations, write: Callable[[Operations], ApplyResult]) -> ApplyResult:
        templates, refused = layout.fill_collections(self._template, set(operations.collections))
        targeted = retarget(operations, templates)
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused)
        refuse_seqs(targeted, reasons)
        self._target.refuse(targeted, reasons)
        with self._lock:
            result = apply_batch(targeted, reasons=reasons, write=write, ttl=True)
            self._wait()
            return result

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Remove tombstones; see :class:`~export_queue.core.sinks.SweepableSink`."""
        with self._lock:
            shards = self._prepare()
            ask = partial(self._all, at=self._at(layout.CONTROL))
            stale = sweeping.lift(ask, store_id=store_id, floor=floor, sink=str(self))
            if self._nodes is not None:
                return sweep_slots(self._nodes, self._marks, stale, sink=str(self))
            return sweeping.sweep_hashes(ask, layout.rank_hashes(shards), stale, str(self))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._connection.close()
            if self._nodes is not None:
                self._nodes.close()

    def _write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records: all at once, or by parts where others write to the same shards."""
        shards = self._prepare()
        if self._nodes is not None:
            return write_by_slot(self._nodes, self._target, self._marks, operations)
        records = self._target.place(operations, shards)
        written, collisions = 0, 0
        rejected: list[Rejection] = []
        parts = [records]
        while parts:
            part = parts.pop()
            outcome = self._attempt(part)
            if outcome is not None:
                written += outcome.written
                rejected += outcome.rejected
                collisions = 0
                continue
            collisions += 1
            if collisions > _MAX_COLLISIONS:
                raise SinkUnavailable(f"{self}: {collisions} tries of one batch met other writers of its records")
            # the first time at once; then smaller, which meets fewer others, and after a moment
            parts += (part.halves() if collisions > 1 else None) or (part,)
            if collisions > 1:
                time.sleep(random.uniform(0, _PAUSE_SECONDS))
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def _write_under(self, claim: Claim, operations: Operations) -> ApplyResult:
        self._prepare()
        return fenced.write_under(self._all, self._target, operations, claim, self)

    def _attempt(self, part: Records) -> ApplyResult | None:
        """Compare and write in one transaction; None if somebody else wrote to one of its shards meanwhile."""
        checked = self._target.checked_keys(part)
        guards, floor_reads = sweeping.floor_reads(part.shards)
        reads: list[Command] = [("WATCH", *part.shards, *guards), *floor_reads]
        reads += [("HMGET", name, *[part.fields[i] for i in group]) for name, group in part.shards.items()]
        reads += [("TYPE", key) for key in checked]
        reads.append(self._marks.look(layout.CONTROL))
        _, *found, mark = self._all(*reads)
        self._marks.check(layout.CONTROL, mark, server=self._connection.server)
        stale = sweeping.stale_text(found[: len(floor_reads)])
        del found[: len(floor_reads)]
        types = dict(zip(checked, found[len(part.shards) :], strict=True))
        decision = decide(part, found[: len(part.shards)], types, repeats=self._target.repeats, stale=stale)
        writes = self._target.writes(part, decision.newer + decision.repeated)
        if not writes:
            self._all(("UNWATCH",))
            return ApplyResult(0, 0, decision.rejected)
        *_, answers = self._all(("MULTI",), *writes, *decision.ranks, ("EXEC",))
        if answers is None:
            return None
        for answer in answers:
            if isinstance(answer, Exception):
                if code_of(answer) == "WRONGTYPE":
                    return None  # a key became something else just now: the next try sees it
                raise explain(answer, self._connection.server) from answer
        return ApplyResult(len(decision.newer), 0, decision.rejected)

    def _wait(self) -> None:
        """Wait for replicas, where that is asked for."""
        if not self._wait_replicas:
            return
        self._prepare()  # where nothing was written, nobody has looked since the last error
        with self._looking_again():
            keys = {self._connection: layout.WAITED}
            if self._nodes is not None:
                keys = {n: layout.key_in_slot(layout.WAITED, slot) for n, slot in self._nodes.primaries().items()}
            wait_for_replicas(keys, wanted=self._wait_replicas, seconds=self._wait_seconds)

    @contextmanager
    def _looking_again(self) -> Iterator[None]:
        """After an error, look at the server again, or ask the cluster who serves what: it may be another one."""
        try:
            yield
        except Exception:
            self._shards = None
            raise

    def _prepare(self) -> int:
        """Look at the server, or at all nodes of the cluster, once per connection, and return the number of shards."""
        if self._shards is None:
            if self._nodes is None and self._check_server(self._connection) == "cluster":
                if self._is_fenced:
                    raise SinkConfigurationError(
                        f"{self} is part of a cluster: fence and records of a unit would lie in different nodes",
                        hint="use guard='seq'",
                    )
                self._nodes = Nodes(self._connection, connect=self._connect, check=self._check_server)
            if self._nodes is not None:
                self._nodes.look()
            self._shards = self._agree_on_shards()
        return self._shards

    def _check_server(self, connection: Connection) -> str:
        """Refuse a server that cannot hold the guarantees.

        :returns: the server's mode, ``standalone`` or ``cluster``.
        """
        facts, name = _facts(connection.ask("INFO")), f"Redis at {connection.server}"
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise SinkConfigurationError(
                f"{name} may evict any key (maxmemory-policy {policy}): it would forget records and their ranks",
                hint="set maxmemory-policy to noeviction, or to one that begins with volatile",
            )
        mode = facts.get("redis_mode", "standalone")
        if mode != "cluster" and facts.get("role", "master") != "master":  # a cluster's replica knows the primaries
            raise SinkUnavailable(f"{name} is a replica", hint="connect to the primary")
        return mode

    def _agree_on_shards(self) -> int:
        expected, wanted = layout.NUMBER, self._wanted_shards or layout.DEFAULT_SHARDS
        if self._nodes is not None:
            expected, wanted = layout.NUMBER_IN_CLUSTERS, layout.SLOTS
        # each field is set by whoever comes first, and never changed
        *_, (number, shards), mark = self._all(
            ("HSETNX", layout.CONTROL, "layout", expected),
            ("HSETNX", layout.CONTROL, "shards", str(wanted)),
            self._marks.leave(layout.CONTROL),
            ("HMGET", layout.CONTROL, "layout", "shards"),
            self._marks.look(layout.CONTROL),
            at=self._at(layout.CONTROL),
        )
        self._marks.check(layout.CONTROL, mark, server=self._connection.server)
        if number.decode() != expected:
            raise SinkConfigurationError(f"{self} has ranks in layout {number.decode()}, expected {expected}")
        if self._wanted_shards not in (None, int(shards)):
            raise SinkConfigurationError(
                f"{self} has its ranks in {int(shards)} shards, the sink asks for {self._wanted_shards}",
                hint="leave shards out: the number is fixed once a database has ranks",
            )
        return int(shards)

    def _at(self, key: bytes) -> Connection:
        """Return the connection to the server that has a key."""
        return self._connection if self._nodes is None else self._nodes.at(key)

    def _all(self, *commands: Command, at: Connection | None = None, **how: Any) -> list[Any]:
        """Send commands that must not fail, and return their replies; ``how`` is for the connection."""
        connection = at or self._connection
        with self._looking_again():
            replies = connection.exchange(commands, **how)
            for reply in replies:
                if isinstance(reply, Exception):
                    connection.close()  # also ends a WATCH or a MULTI
                    raise explain(reply, connection.server) from reply
        return replies

    def __str__(self) -> str:
        return f"Redis at {self._connection.server}"

    def __repr__(self) -> str:
        return f"<RedisSink {self._connection.server} {self._template}>"


def _facts(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, mark, value in pairs if mark}
