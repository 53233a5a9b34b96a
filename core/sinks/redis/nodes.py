"""The primaries of a Redis Cluster: the slots that each serves, and a connection to each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from redis.cluster import parse_cluster_slots
from redis.crc import key_slot

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.packing import Sendable


class Nodes:
    """Knows the nodes of a cluster from any of them that answers.

    :param seed: the node that the sink's description names.
    :param connect: makes a connection to a node, by host and port.
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
        """By address; the node that was asked last stands last."""
        self._ranges: list[tuple[int, int, Connection]] = []
        """First and last slot, and the primary that serves them; empty before the first query and after an error."""

    def look(self) -> None:
        """Ask which node serves which slot, and check these nodes.

        :raises SinkUnavailable: no node answers, or one of the primaries does not.
        """
        self.forget()
        asked, answer = self._ask()
        served = parse_cluster_slots(answer, current_host=asked.server.rpartition(":")[0])
        addresses = [address for found in served.values() for address in (found["primary"], *found["replicas"])]
        known: dict[str, Connection] = {}
        for host, port in addresses:
            name = f"{host}:{port}"
            known.setdefault(name, self._known.get(name) or self._connect(host, port))
        known.setdefault(self._seed.server, self._seed)
        known[asked.server] = known.pop(asked.server, asked)  # the others are asked before it: it may be cut off
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
        """Ask anew before anything else is sent."""
        self._ranges = []

    def close(self) -> None:
        """Close all connections."""
        self.forget()
        for node in self._known.values():
            node.close()


def exchange_all(commands: Mapping[Connection, Sequence[Sendable]]) -> dict[Connection, list[Reply]]:
    """Send each server its commands before any reply is read, so that they work at the same time.

    :raises SinkUnavailable: a connection broke; which commands took effect is not known, at other servers neither.
    """
    try:
        for node, own in commands.items():
            node.send(own)
        return {node: node.receive(len(own)) for node, own in commands.items()}
    except BaseException:
        for node in commands:
            node.close()  # replies may be on their way
        raise
