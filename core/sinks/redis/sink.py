"""The Redis sink: reads ranks under WATCH, compares them here, writes records and ranks in one MULTI."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.core.sinks.batch import Reasons, apply_batch, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.control import admission
from export_queue.core.sinks.fencing import Claim, Guard, check_guard, refuse_unclaimed
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection
from export_queue.core.sinks.redis import fenced, layout
from export_queue.core.sinks.redis.connection import Connection
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.layout import Command
from export_queue.core.sinks.redis.targets import TARGETS, Kind, Records, decide

_MAX_COLLISIONS = 200
"""Tries of one batch that others spoilt, one after the other, before the sink counts as overloaded."""
_PAUSE_SECONDS = 0.02


class RedisSink:
    """Strings or members of sets in one Redis server.

    :param host: the server's name or address.
    :param port: its port.
    :param db: number of the database.
    :param username: the user; None for the default one.
    :param password: the password, or a callable that returns it, asked at each new connection.
    :param ssl: whether to connect by TLS.
    :param ssl_options: further TLS options of redis-py's connection, ``ssl_ca_certs`` and so on.
    :param key: template of the records' keys, from ``{collection}`` and ``{id}``.
    :param target: ``string``: a record is a string, its document. ``set``: the id ``<set>/<member>`` is one
        member of a set, ``{id}`` in the key is the set's name, and documents are not kept.
    :param shards: over how many hashes the ranks are spread; fixed by the first sink that writes to the
        database, and taken from there where it is left out.
    :param socket_timeout: seconds to wait for an answer; a batch that takes longer counts as failed.
    :param socket_connect_timeout: seconds to wait for a connection.
    :param guard: what keeps late deliveries out: ``seq``, the rank of each record, or ``fence``, that of the drain.
    :raises SinkConfigurationError: an option is not valid.
    """

    capabilities = Capabilities(batch_rows=1000, batch_bytes=1 << 20)

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
        socket_timeout: float = 60.0,
        socket_connect_timeout: float = 10.0,
        guard: Guard = "seq",
    ) -> None:
        check_guard(guard)
        layout.check_template(key)
        if target not in TARGETS:
            raise SinkConfigurationError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
        for name, number in (("port", port), ("db", db)):
            if not isinstance(number, int) or number < 0:
                raise SinkConfigurationError(f"{name}: expected a number, found {number!r}")
        if shards is not None and not 1 <= shards <= 1 << 20:
            raise SinkConfigurationError(f"shards: expected 1 to {1 << 20}, found {shards}")
        self._is_fenced = guard == "fence"
        if self._is_fenced:
            self.capabilities = replace(self.capabilities, fenced=True)
        self._template = key
        self._target = TARGETS[target]
        self._wanted_shards = shards
        self._shards: int | None = None
        self._lock = threading.Lock()
        self._connection = Connection(
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

    def admit(self, *, queue_id: str, store_id: str, fence: int) -> None:
        """Check the server and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        key = layout.control_key(queue_id)
        with self._lock:
            self._prepare()
            for _ in range(_MAX_COLLISIONS):
                _, (*fields, guard) = self._all(("WATCH", key), ("HMGET", key, *layout.CONTROL_FIELDS, fenced.GUARD))
                found = layout.read_control(fields)
                try:
                    wanted = admission(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self))
                    fenced.check_queue(
                        guard, is_known=found is not None, is_fenced=self._is_fenced, queue_id=queue_id, sink=self
                    )
                except Exception:
                    self._all(("UNWATCH",))
                    raise
                record = layout.write_control(wanted) + ((fenced.GUARD, "fence") if self._is_fenced else ())
                *_, done = self._all(("MULTI",), ("HSET", key, *record), ("EXEC",))
                if done is not None:
                    return
        raise SinkUnavailable(f"{self}: the control record of queue {queue_id!r} changes all the time")

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        if self._is_fenced:
            raise refuse_unclaimed(self)
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
            return apply_batch(targeted, reasons=reasons, write=write)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    def _write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records: all at once, or by parts where others write to the same shards."""
        records = self._target.place(operations, self._prepare())
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
        reads: list[Command] = [("WATCH", *part.shards)]
        reads += [("HMGET", name, *[part.fields[i] for i in group]) for name, group in part.shards.items()]
        reads += [("TYPE", key) for key in checked]
        _, *found = self._all(*reads)
        types = dict(zip(checked, found[len(part.shards) :], strict=True))
        decision = decide(part, found[: len(part.shards)], types, repeats=self._target.repeats)
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

    def _prepare(self) -> int:
        """Look at the server once per connection, and return its number of shards."""
        if self._shards is None:
            self._check_server()
            self._shards = self._agree_on_shards()
        return self._shards

    def _check_server(self) -> None:
        facts = _facts(self._connection.ask("INFO"))
        if facts.get("redis_mode") == "cluster":
            raise SinkConfigurationError(f"{self} is part of a cluster: this sink writes to a single server")
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise SinkConfigurationError(
                f"{self} may evict any key (maxmemory-policy {policy}): it would forget records and their ranks",
                hint="set maxmemory-policy to noeviction, or to one that begins with volatile",
            )
        if facts.get("role", "master") != "master":
            raise SinkUnavailable(f"{self} is a replica", hint="connect to the primary")

    def _agree_on_shards(self) -> int:
        wanted = self._wanted_shards or layout.DEFAULT_SHARDS
        # each field is set by whoever comes first, and never changed
        *_, (number, shards) = self._all(
            ("HSETNX", layout.CONTROL, "layout", layout.NUMBER),
            ("HSETNX", layout.CONTROL, "shards", str(wanted)),
            ("HMGET", layout.CONTROL, "layout", "shards"),
        )
        if number.decode() != layout.NUMBER:
            raise SinkConfigurationError(f"{self} has ranks in layout {number.decode()}, expected {layout.NUMBER}")
        if self._wanted_shards not in (None, int(shards)):
            raise SinkConfigurationError(
                f"{self} has its ranks in {int(shards)} shards, the sink asks for {self._wanted_shards}",
                hint="leave shards out: the number is fixed once a database has ranks",
            )
        return int(shards)

    def _all(self, *commands: Command, **how: Any) -> list[Any]:
        """Send commands that must not fail, and return their replies; ``how`` is for the connection."""
        try:
            replies = self._connection.exchange(commands, **how)
        except Exception:
            self._shards = None  # look at the server again: it may have become another one
            raise
        for reply in replies:
            if isinstance(reply, Exception):
                self._connection.close()  # also ends a WATCH or a MULTI
                self._shards = None
                raise explain(reply, self._connection.server) from reply
        return replies

    def __str__(self) -> str:
        return f"Redis at {self._connection.server}"

    def __repr__(self) -> str:
        return f"<RedisSink {self._connection.server} {self._template}>"


def _facts(info: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, mark, value in pairs if mark}
