"""The Redis sink: what it takes, which store may feed it, and the batches that it hands to its servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, cast

from export_queue.core.drivers import check_redis_tls, redis_tls
from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.batch import Reasons, apply_batch, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.control import ControlRecord, check_owner
from export_queue.core.sinks.guards import Claim, ClaimedSink, Guard, check_guard, unclaimed_error
from export_queue.core.sinks.naming import is_fixed
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.cluster import Cluster
from export_queue.core.sinks.redis.connection import Connection
from export_queue.core.sinks.redis.errors import Collision, until_undisturbed
from export_queue.core.sinks.redis.floor import raise_floor, register_store
from export_queue.core.sinks.redis.incarnation import Incarnations
from export_queue.core.sinks.redis.packing import Command
from export_queue.core.sinks.redis.servers import Servers, check_server
from export_queue.core.sinks.redis.single import SingleServer
from export_queue.core.sinks.redis.sizes import refuse_long
from export_queue.core.sinks.redis.targets import TARGETS, Kind
from export_queue.core.sinks.redis.unit_fences import GUARD, agree_on_guard, check_queue, claim_units


class RedisSink:
    """Strings, hashes or members of sets in one Redis server or in a Redis Cluster; the server says which it is.

    :param host: the server's name or address; of a cluster that of any node.
    :param port: its port.
    :param db: number of the database.
    :param username: the user; None for the default one.
    :param password: the password, or a callable that returns it, asked at each new connection.
    :param ssl: whether to connect by TLS.
    :param ssl_options: further TLS options in redis-py's names: ``ssl_ca_certs``, ``ssl_min_version`` and so on.
    :param key: template of the records' keys, from ``$collection`` and ``$id``; ``${id}`` before a letter, a digit or
        ``_``, and ``$$`` for a dollar sign of the key.
    :param target: ``string``: a record is a string, its document. ``hash``: a record is a hash, the fields of its
        document. ``set``: the id ``<set>/<member>`` is one
        member of a set, ``$id`` in the key is the set's name, and documents are not kept.
    :param shards: over how many hashes the ranks are spread; fixed by the first sink that writes to the
        database, and taken from there where it is left out. A cluster's ranks lie by slots.
    :param wait_replicas: how many replicas, of each primary in a cluster, must have a batch before it counts as
        acknowledged; they are waited for during half of ``socket_timeout``.
    :param socket_timeout: seconds to wait for an answer; a batch that takes longer counts as failed.
    :param socket_connect_timeout: seconds to wait for a connection.
    :param guard: what keeps late deliveries out: ``seq``, the rank of each record, or ``fence``, that of the drain.
    :raises SinkConfigurationError: an option is not valid.
    """

    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, ttl=True)

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        username: str | None = None,
        password: str | Callable[[], str] | None = None,
        ssl: bool = False,
        ssl_options: Mapping[str, Any] | None = None,
        key: str = "$collection:$id",
        target: Kind = "string",
        shards: int | None = None,
        wait_replicas: int = 0,
        socket_timeout: float = 60.0,
        socket_connect_timeout: float = 10.0,
        guard: Guard = "seq",
    ) -> None:
        check_guard(guard)
        if not isinstance(key, str):
            raise SinkConfigurationError(f"key: expected a template such as order:$id, found {key!r}")
        template = layout.check_template(key)
        if target not in TARGETS:
            raise SinkConfigurationError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
        for name, number in (("port", port), ("db", db), ("wait_replicas", wait_replicas)):
            if not isinstance(number, int) or number < 0:
                raise SinkConfigurationError(f"{name}: expected a number, found {number!r}")
        if shards is not None and not (isinstance(shards, int) and 1 <= shards <= 1 << 20):
            raise SinkConfigurationError(f"shards: expected 1 to {1 << 20}, found {shards!r}")
        tls = redis_tls(ssl_options or {}, ssl=bool(ssl), where="ssl_options", error=SinkConfigurationError)
        check_redis_tls(tls, where="ssl_options", error=SinkConfigurationError)
        if not isinstance(ssl, bool):
            raise SinkConfigurationError(f"ssl: expected true or false, found {ssl!r}")
        if not host or any(sign in host for sign in "/@,?# ") or host.count(":") == 1:  # it may hold a password
            raise SinkConfigurationError("host: expected the name or the address of one host, without port and options")
        self._is_fenced = guard == "fence"
        if self._is_fenced:
            self.capabilities = replace(self.capabilities, fenced=True)
        self._template = template
        self._target = TARGETS[target]
        self._binding = {"kind": "redis", "key": template, "target": target, "guard": guard}
        self._wanted_shards = shards
        self._incarnations = Incarnations()
        self._wait_replicas = wait_replicas
        self._wait_seconds = socket_timeout / 2  # so that the server's answer comes before the time-out
        self._lock = threading.Lock()

        def connect(host: str, port: int) -> Connection:
            return Connection(
                server=f"{host}:{port}, database {db}" if db else f"{host}:{port}",
                options={
                    "host": host,
                    "port": port,
                    "db": db,
                    "socket_timeout": socket_timeout,
                    "socket_connect_timeout": socket_connect_timeout,
                    "socket_keepalive": True,
                    "client_name": "export-queue",
                    **tls,
                },
                ssl=ssl,
                username=username,
                password=password,
            )

        self._connect = connect
        self._connection = connect(host, port)
        self._servers: Servers | None = None
        self._fixed = {template} if is_fixed(template) else set()
        self._agreed: set[str] = set()
        """Templates of keys, with nothing but ``$id`` left, whose guard is known to be this one."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the server and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        key = layout.control_key(queue_id)
        with self._lock:
            self._agreed.clear()
            if readmit:
                self._incarnations.forget()
                if self._servers is not None:
                    self._servers.is_known = False
            servers = self._prepare()
            servers.prove(key, readmit=readmit)
            ask = partial(servers.ask, key)
            noted: Command = ()

            def read_and_check() -> ControlRecord:
                _, (*fields, guard) = ask(("WATCH", key), ("HMGET", key, *layout.CONTROL_FIELDS, GUARD))
                found = layout.read_control(fields)
                try:
                    check_queue(
                        guard, is_known=found is not None, is_fenced=self._is_fenced, queue_id=queue_id, sink=self
                    )
                    return check_owner(
                        found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown
                    )
                except Exception:
                    ask(("UNWATCH",))
                    raise

            def record() -> None:
                guard = (GUARD, "fence") if self._is_fenced else ()
                write: Command = ("HSET", key, *layout.write_control(read_and_check()), *noted, *guard)
                *_, done = ask(("MULTI",), write, ("EXEC",))
                if done is None:
                    raise Collision

            # a store that is refused must not be registered, one that is registered must be known before its record is
            read_and_check()
            ask(("UNWATCH",))
            register_store(partial(servers.ask, layout.CONTROL), store_id=store_id, sink=str(self))
            self._agree_on_guard(self._fixed)
            noted = servers.show(fence)
            until_undisturbed(record, f"{self}: the control record of queue {queue_id!r} changes all the time")
            self._wait()

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        if self._is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, self._write)

    def binding(self) -> Mapping[str, Any]:
        """Template, kind of record and guard; see :class:`~export_queue.core.sinks.BoundSink`."""
        return dict(self._binding)

    def claim(self, claims: Sequence[Claim]) -> Sequence[ClaimedSink]:
        """Take units over; see :class:`~export_queue.core.sinks.FencedSink`."""
        with self._lock:
            claim_units(partial(self._prepare().ask, layout.CONTROL), claims, self)
        return [self.under(claim) for claim in claims]

    def under(self, claim: Claim) -> ClaimedSink:
        """Return the sink of a claim; see :class:`~export_queue.core.sinks.FencedSink`."""
        return ClaimedSink(self, lambda operations: self._apply(operations, partial(self._write_under, claim)))

    def _apply(self, operations: Operations, write: Callable[[Operations], ApplyResult]) -> ApplyResult:
        templates, refused = layout.fill_collections(self._template, set(operations.collections))
        targeted = retarget(operations, templates)
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused)
        refuse_seqs(targeted, reasons)
        self._target.refuse(targeted, reasons)
        with self._lock:
            self._agree_on_guard(set(templates.values()))
            refuse_long(self._prepare, self._target, targeted, reasons)
            result = apply_batch(targeted, reasons=reasons, write=write, ttl=True)
            self._wait()
            return result

    def _agree_on_guard(self, templates: Set[str]) -> None:
        """Make sure, once, that keys of these templates are written under one guard.

        :param templates: with nothing but ``$id`` left.
        :raises SinkConfigurationError: another queue writes them under the other guard.
        """
        new = sorted(templates - self._agreed)
        servers = self._prepare() if new else None
        if isinstance(servers, SingleServer):  # in a cluster there is one guard only
            agree_on_guard(partial(servers.ask, layout.CONTROL), new, is_fenced=self._is_fenced, sink=self)
        self._agreed.update(new)

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Remove tombstones; see :class:`~export_queue.core.sinks.SweepableSink`."""
        with self._lock:
            servers = self._prepare()
            raised = raise_floor(partial(servers.ask, layout.CONTROL), store_id=store_id, floor=floor, sink=str(self))
            return servers.sweep(raised)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._connection.close()
            if self._servers is not None:
                self._servers.close()

    def _write(self, operations: Operations) -> ApplyResult:
        return self._prepare().write(operations)

    def _write_under(self, claim: Claim, operations: Operations) -> ApplyResult:
        return cast(SingleServer, self._prepare()).write_under(claim, operations)  # no cluster has this guard

    def _wait(self) -> None:
        """Wait for replicas, where that is asked for."""
        if self._wait_replicas:
            self._prepare().wait_for_replicas(wanted=self._wait_replicas, seconds=self._wait_seconds)

    def _prepare(self) -> Servers:
        """Look at the servers, at first and after each error, since others may have taken their place."""
        if self._servers is None or not self._servers.is_known:
            # a cluster stays one: its nodes are known, and the one that was named may be away
            if not isinstance(self._servers, Cluster):
                self._servers = self._recognize()
            self._servers.prepare()
        return self._servers

    def _recognize(self) -> Servers:
        """Ask the server that was named whether it is a single one."""
        if check_server(self._connection) != "cluster":
            return SingleServer(self._connection, self._target, self._incarnations, wanted_shards=self._wanted_shards)
        if self._is_fenced:
            raise SinkConfigurationError(
                f"{self} is part of a cluster: fence and records of a unit would lie in different nodes",
                hint="use guard='seq'",
            )
        return Cluster(
            self._connection, self._connect, self._target, self._incarnations, wanted_shards=self._wanted_shards
        )

    def __str__(self) -> str:
        return f"Redis at {self._connection.server}"

    def __repr__(self) -> str:
        return f"<RedisSink {self._connection.server} {self._template}>"
