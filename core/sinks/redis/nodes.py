"""The primaries of a Redis Cluster: which slots each serves, and a connection to each. Also the wait for replicas.

With redis-py's cluster client, a batch of 10,000 records of 100 bytes takes 2.2 times as long: it packs and routes each
of the 7,500 calls of a script one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from redis.cluster import parse_cluster_slots
from redis.crc import key_slot

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.redis.packing import Sendable


class Nodes:
    """The nodes of a cluster, as any node that answers describes them.

    :param seed: the node that the sink's options name.
    :param connect: makes a connection to a node from its host and port.
    :param check: examines a primary before anything is written to it.
    """

    def __init__(
        self,
        seed: Connection,
        *,
        connect: Callable[[str, int], Connection],
        check: Callable[[Connection], object],
    ) -> None:
        self._seed = seed
        self._connect = connect
        self._check = check
        self._known = {seed.server: seed}
        """By address. The node that was asked last is the last one."""
        self._ranges: list[tuple[int, int, Connection]] = []
        """First slot, last slot, and the primary that serves them. Empty before the first query and after an error."""

    def look(self) -> None:
        """Query which node serves which slot, and check the primaries.

        :raises SinkUnavailable: no node answers, or one of the primaries does not.
        """
        self.forget()
        asked, answer = self._ask()
        served = parse_cluster_slots(answer, current_host=asked.server.rpartition(":")[0])
        known: dict[str, Connection] = {}
        for host, port in chain.from_iterable((found["primary"], *found["replicas"]) for found in served.values()):
            name = f"{host}:{port}"
            known.setdefault(name, self._known.get(name) or self._connect(host, port))
        known.setdefault(self._seed.server, self._seed)
        known[asked.server] = known.pop(asked.server, asked)  # next time other nodes come first: it may be cut off
        for name in self._known.keys() - known.keys():
            self._known[name].close()
        self._known = known
        named = {slots: "{}:{}".format(*found["primary"]) for slots, found in served.items()}
        for name in dict.fromkeys(named.values()):
            self._check(known[name])
        self._ranges = sorted(
            ((first, last, known[name]) for (first, last), name in named.items()), key=lambda found: found[0]
        )

    def _ask(self) -> tuple[Connection, Reply]:
        trouble: list[SinkUnavailable] = []
        for node in self._known.values():
            try:
                return node, node.ask("CLUSTER", "SLOTS")
            except SinkUnavailable as error:
                trouble.append(error)
        raise trouble[-1]

    def at(self, key: bytes) -> Connection:
        """Return the connection to the primary that serves a key.

        :raises SinkUnavailable: no node serves its slot.
        """
        if not self._ranges:
            self.look()
        slot = key_slot(key)
        index = bisect_right(self._ranges, slot, key=lambda found: found[0]) - 1
        if index < 0 or self._ranges[index][1] < slot:
            self.forget()
            raise SinkUnavailable(f"Redis Cluster at {self._seed.server}: no node serves slot {slot}")
        return self._ranges[index][2]

    def primaries(self) -> dict[Connection, int]:
        """Return all primaries, each with one of its slots."""
        if not self._ranges:
            self.look()
        return {node: first for first, _, node in reversed(self._ranges)}

    def forget(self) -> None:
        """Query the slots again before the next use."""
        self._ranges = []

    def close(self) -> None:
        """Close all connections."""
        self.forget()
        for node in self._known.values():
            node.close()


def exchange_all(commands: Mapping[Connection, Sequence[Sendable]]) -> dict[Connection, list[Reply]]:
    """Send commands to all servers before reading any reply, so that the servers work at the same time.

    :raises SinkUnavailable: a connection broke. Commands may have taken effect, also on other servers.
    """
    try:
        for node, own in commands.items():
            node.send(own)
        return {node: node.receive(len(own)) for node, own in commands.items()}
    except BaseException:
        for node in commands:
            node.close()  # their replies may still arrive
        raise


def ask_each(commands: Mapping[Connection, Sequence[Sendable]]) -> dict[Connection, Reply]:
    """Send commands that must not fail to all servers, and return the last reply of each."""
    replies = exchange_all(commands)
    for node, answers in replies.items():
        for answer in answers:
            if isinstance(answer, Exception):
                raise explain(answer, node.server) from answer
    return {node: answers[-1] for node, answers in replies.items()}


def wait_for_replicas(keys: Mapping[Connection, bytes], *, wanted: int, seconds: float) -> None:
    """Wait until replicas have everything that their primaries have written so far.

    ``WAIT`` covers only the writes of its own connection. A batch can be stale because another connection has written
    its records. So this connection writes a key to each primary first: replication is ordered, so that a replica that
    has this key has all earlier writes.

    :param keys: a key to write to each primary.
    :param wanted: number of replicas that each primary needs.
    :raises SinkUnavailable: too few replicas have the writes in time.
    """
    wait = ("WAIT", str(wanted), str(max(1, int(seconds * 1000))))
    for node, found in ask_each({node: [("SET", key, "1"), wait] for node, key in keys.items()}).items():
        if found < wanted:
            raise SinkUnavailable(
                f"Redis at {node.server}: expected {wanted} replicas to have the batch within {seconds:g} s,"
                f" found {found}",
                hint="bring the replicas back, or ask for fewer (wait_replicas); the batch is sent again",
            )
