"""The Redis sink: its options, the store that feeds it, and the batches that it passes to its servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from export_queue.core.drivers import check_redis_host, check_redis_tls, redis_tls
from export_queue.core.errors import SinkConfigurationError, SinkRefused
from export_queue.core.sinks.batch import (
    Reasons,
    apply_batch,
    refuse_collections,
    refuse_lengths,
    refuse_seqs,
    refuse_ttls,
    retarget,
)
from export_queue.core.sinks.control import check_owner
from export_queue.core.sinks.guards import Claim, ClaimedSink, Guard, check_guard, unclaimed_error
from export_queue.core.sinks.naming import is_fixed, names_of
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, StoredRecords
from export_queue.core.sinks.redis import layout, scanning
from export_queue.core.sinks.redis.cluster import Cluster
from export_queue.core.sinks.redis.connection import Connection, Reply, change_watched
from export_queue.core.sinks.redis.nodes import wait_for_replicas
from export_queue.core.sinks.redis.packing import Command, word_of
from export_queue.core.sinks.redis.servers import Incarnations, Servers, check_server, version_of
from export_queue.core.sinks.redis.single import SingleServer
from export_queue.core.sinks.redis.sweep import READ_FLOOR, raise_floor, register_store
from export_queue.core.sinks.redis.targets import TARGETS, Kind, Target
from export_queue.core.sinks.redis.unit_fences import GUARD, agree_on_guard, check_queue, claim_units

_ALWAYS_TAKEN = 1 << 20
"""Bytes of one part of a command that every server accepts: ``proto-max-bulk-len`` cannot be set lower."""


class RedisSink:
    """Strings, hashes or members of sets in one Redis server or in a Redis Cluster. The server says which it is.

    :param host: name or address of the server, or of any node of a cluster.
    :param port: the server's port.
    :param db: number of the database.
    :param username: the user; None for the default user.
    :param password: the password, or a callable that returns it and is called for each new connection.
    :param ssl: whether to connect with TLS.
    :param ssl_options: further TLS options by redis-py's names: ``ssl_ca_certs``, ``ssl_min_version`` and so on.
    :param key: template of the record keys, with ``$collection`` and ``$id``. Write ``${id}`` before a letter, a digit
        or ``_``, and ``$$`` for a dollar sign.
    :param target: ``string``: a record is a string, its document. ``hash``: a record is a hash with the fields of its
        document. ``set``: the id ``<set>/<member>`` is a member of a set, ``$id`` in the key is the name of the set,
        and documents are not kept.
    :param shards: number of hashes that hold the ranks. The first sink that writes to the database fixes it; sinks that
        leave it out use that number. A cluster stores ranks by slots instead.
    :param wait_replicas: number of replicas (of each primary in a cluster) that must have a batch before it is
        acknowledged. The sink waits for them for half of ``socket_timeout``.
    :param socket_timeout: seconds to wait for an answer. A batch that takes longer counts as failed.
    :param socket_connect_timeout: seconds to wait for a connection.
    :param guard: what rejects late deliveries: ``seq``, the rank of each record, or ``fence``, the fence of the drain.
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
        if port >= 1 << 16:
            raise SinkConfigurationError(f"port: expected a number from 1 to 65535, found {port!r}")
        if shards is not None and not (isinstance(shards, int) and 1 <= shards <= 1 << 20):
            raise SinkConfigurationError(f"shards: expected 1 to {1 << 20}, found {shards!r}")
        tls = redis_tls(ssl_options or {}, ssl=bool(ssl), where="ssl_options", error=SinkConfigurationError)
        check_redis_tls(tls, where="ssl_options", error=SinkConfigurationError)
        if not isinstance(ssl, bool):
            raise SinkConfigurationError(f"ssl: expected true or false, found {ssl!r}")
        check_redis_host(host, where="sink redis", error=SinkConfigurationError)
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
        self._is_known = False
        """Whether the servers have been examined since the last error."""
        self._fixed = {template} if is_fixed(template) else set()
        self._agreed: set[str] = set()
        """Key templates, with only ``$id`` left, that are known to be written under this sink's guard."""

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        key = layout.control_key(queue_id)
        read: Command = ("HMGET", key, *layout.CONTROL_FIELDS, GUARD)
        noted: Command = (GUARD, "fence") if self._is_fenced else ()

        def decide(replies: Sequence[Reply]) -> Sequence[Command]:
            ((*fields, guard),) = replies
            found = layout.read_control(fields)
            check_queue(guard, is_known=found is not None, is_fenced=self._is_fenced, queue_id=queue_id, sink=self)
            kept = check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown)
            return [("HSET", key, *layout.write_control(kept), *noted)]

        with self._working(readmit=readmit) as servers:
            self._agreed.clear()
            servers.prove(key, readmit=readmit)
            decide(servers.ask(key, read))  # a refused store must not be registered
            register_store(partial(servers.ask, layout.CONTROL), store_id=store_id, sink=str(self))
            self._agree_on_guard(servers, self._fixed)
            noted = (*servers.show(fence), *noted)
            complaint = f"{self}: the control record of queue {queue_id!r} changes all the time"
            change_watched(partial(servers.ask, key), [key], [read], decide, complaint)
            self._wait(servers)

    def apply(self, operations: Operations) -> ApplyResult:
        if self._is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations)

    def repair(self, operations: Operations) -> ApplyResult:
        if self._is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, repairs=True)

    def binding(self) -> Mapping[str, Any]:
        return dict(self._binding)

    def claim(self, claims: Sequence[Claim]) -> Sequence[ClaimedSink]:
        with self._working() as servers:
            claim_units(partial(servers.ask, layout.CONTROL), claims, self)
        return [self.under(claim) for claim in claims]

    def under(self, claim: Claim) -> ClaimedSink:
        return ClaimedSink(self, partial(self._apply, claim=claim))

    def _apply(self, operations: Operations, *, claim: Claim | None = None, repairs: bool = False) -> ApplyResult:
        templates, refused = layout.fill_collections(self._template, set(operations.collections))
        targeted = retarget(operations, templates)
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused)
        refuse_seqs(targeted, reasons)
        self._target.refuse(targeted, reasons)
        with self._working() as servers:
            self._agree_on_guard(servers, set(templates.values()))
            _refuse_long(servers, self._target, targeted, reasons)
            # a fenced sink never writes to a cluster
            write = partial(servers.write, repairs=repairs)
            if claim is not None:
                write = partial(cast(SingleServer, servers).write_under, claim)
            result = apply_batch(targeted, reasons=reasons, write=write, ttl=True)
            self._wait(servers)
            return result

    def _agree_on_guard(self, servers: Servers, templates: Set[str]) -> None:
        """Check, once per template, that all queues write its keys under one guard.

        :param templates: key templates in which only ``$id`` is left.
        """
        new = sorted(templates - self._agreed)
        if new and isinstance(servers, SingleServer):  # a cluster has only one guard
            agree_on_guard(partial(servers.ask, layout.CONTROL), new, is_fenced=self._is_fenced, sink=self)
        self._agreed.update(new)

    def sweep(self, *, store_id: str, floor: int) -> int:
        with self._working() as servers:
            raised = raise_floor(partial(servers.ask, layout.CONTROL), store_id=store_id, floor=floor, sink=str(self))
            return servers.sweep(raised)

    def render(self, operations: Operations) -> tuple[StoredRecords, Sequence[int]]:
        templates, _ = layout.fill_collections(self._template, set(operations.collections))
        reasons: Reasons = {i: "" for i, name in enumerate(operations.collections) if name not in templates}
        targeted = retarget(operations, templates)
        refuse_seqs(targeted, reasons)
        refuse_ttls(targeted, reasons, taken=True)
        self._target.refuse(targeted, reasons)
        taken = [i for i in range(len(operations)) if i not in reasons]
        kept = targeted if not reasons else targeted.take(taken)
        documents = [None if document is None else self._target.normal(document) for document in kept.documents]
        ranks = [-1] * len(kept) if self._is_fenced else kept.ranks()
        return StoredRecords(kept.collections, kept.ids, ranks, documents), taken

    def scan(self, collections: Collection[str]) -> Iterator[StoredRecords]:
        templates = sorted(set(layout.fill_collections(self._template, collections)[0].values()))
        if self._is_fenced:
            return scanning.scan_keys(self._read, templates, self._target)
        with self._working() as servers:
            names = servers.rank_hashes(self._target.hashes)
        return scanning.scan_ranks(self._read, names, templates, self._target)

    def look_up(self, target: str, ids: Sequence[bytes]) -> StoredRecords:
        with self._working() as servers:
            hashes = None if self._is_fenced else partial(servers.hashes_of, self._target.hashes)
        return scanning.look_up(self._read, target, ids, self._target, hashes)

    def floor_of(self, target: str) -> int:
        with self._working() as servers:
            (floor,) = servers.ask(layout.CONTROL, READ_FLOOR)
            return int(floor or 0)

    def target(self, collection: str) -> str:
        templates, refused = layout.fill_collections(self._template, [collection])
        if refused:
            raise SinkConfigurationError(refused[collection])
        return templates[collection]

    def pointed_at(self, pointer: str) -> str | None:
        key = self._pointer_key(pointer)
        (found,) = self._read([(key, ("GET", key))])
        if isinstance(found, Exception):
            raise SinkConfigurationError(
                f"{self}: key {pointer!r} is not a string, and cannot be a pointer",
                hint="give the pointer another name",
            )
        return None if found is None else bytes(found).decode("utf-8", "backslashreplace")

    def point(self, pointers: Mapping[str, str]) -> None:
        words = [(self._pointer_key(pointer), self.target(collection)) for pointer, collection in pointers.items()]
        with self._working() as servers:
            if isinstance(servers, SingleServer):
                servers.ask(layout.CONTROL, ("MSET", *(word for pair in words for word in pair)))
            else:
                for key, template in words:
                    servers.ask(key, ("SET", key, template))
            self._wait(servers)

    def _pointer_key(self, pointer: str) -> bytes:
        """Return the key of a pointer; refuse a key of the sink, and one that a record may have."""
        key = pointer.encode()
        if not key or key.startswith(layout.RESERVED) or re.fullmatch(names_of(self._template), pointer, re.DOTALL):
            raise SinkConfigurationError(
                f"{self}: key {pointer!r} cannot be a pointer: it may be the key of a record, or of the sink itself",
                hint="give the pointer another name",
            )
        return key

    def _read(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        with self._working() as servers:
            return servers.read(commands)

    def probe(self) -> str:
        with self._lock:
            mode = check_server(self._connection)
            return f"{self}, version {version_of(self._connection)}, {mode}"

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            if self._servers is not None:
                self._servers.close()

    def _wait(self, servers: Servers) -> None:
        if self._wait_replicas:
            wait_for_replicas(servers.keys(layout.WAITED), wanted=self._wait_replicas, seconds=self._wait_seconds)

    @contextmanager
    def _working(self, *, readmit: bool = False) -> Iterator[Servers]:
        """Hold the lock, and give access to the servers.

        They are examined at the first use and after each error, because other servers may have replaced them.
        """
        with self._lock:
            if readmit:
                self._incarnations.forget()
                self._is_known = False
            try:
                # a cluster stays a cluster: the node that was named may be down, but the others are known
                if not self._is_known and not isinstance(self._servers, Cluster):
                    self._servers = self._recognize()
                servers = cast(Servers, self._servers)
                if not self._is_known:
                    servers.prepare()
                    self._is_known = True
                yield servers
            except BaseException:
                self._is_known = False
                raise

    def _recognize(self) -> Servers:
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


def _refuse_long(servers: Servers, target: Target, operations: Operations, reasons: Reasons) -> None:
    """Refuse operations with a part that is longer than Redis, or its setting ``proto-max-bulk-len``, allows.

    A server that receives one closes the connection without saying which record of the batch caused it.

    :param operations: the batch, with key templates as collections.
    """
    longest_document = max(map(len, filter(None, operations.documents)), default=0)
    if longest_document + max(map(len, operations.ids), default=0) <= _ALWAYS_TAKEN:
        return
    refuse_lengths(operations, reasons, id_bytes=layout.MAX_BYTES // 2, document_bytes=layout.MAX_BYTES)
    for i, (record, document) in enumerate(zip(operations.ids, operations.documents, strict=True)):
        if len(record) + len(document or b"") <= _ALWAYS_TAKEN or i in reasons:
            continue
        key = word_of(target.locate(operations.take([i])).keys[0])
        longest = max(len(key), target.longest_part(record, document))
        if longest > _ALWAYS_TAKEN and not _takes(servers, key, longest):
            reasons[i] = f"{longest} bytes in one piece are more than the server takes (proto-max-bulk-len)"


def _takes(servers: Servers, key: bytes, length: int) -> bool:
    """Return whether a server accepts a part of this length.

    Not every user may read the setting. But ``GETBIT`` refuses an offset beyond the limit, whatever the key holds.
    """
    try:
        servers.ask(key, ("GETBIT", key, str(8 * (length - 1))))
    except SinkRefused as error:
        # other refusals, such as a missing right or a key that is no string, say nothing about lengths
        return "bit offset" not in str(error)
    return True
