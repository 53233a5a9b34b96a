"""A private Redis Cluster for tests: three primaries, each with a replica, all on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.support.servers import HOST, RedisServer, free_port

if TYPE_CHECKING:
    import redis

PRIMARIES = 3
_SLOTS = 16384
_START_SECONDS = 60.0


class _Node(RedisServer):
    """One server of the cluster, with a port for the others that stays its own when it comes back."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._bus = (0, 0)

    @property
    def bus_port(self) -> int:
        """The port on which the nodes talk to each other."""
        if self._bus[0] != self.port:
            self._bus = self.port, free_port()
        return self._bus[1]

    def _standard_input(self) -> bytes:
        return super()._standard_input() + f"cluster-port {self.bus_port}\n".encode()


class RedisCluster:
    """A Redis Cluster of six processes without persistence and with a password.

    It is stopped, and its folders removed, when its ``with`` block ends.

    :param node_timeout: milliseconds after which a node that does not answer counts as failing.
    :param settings: further lines of all nodes' configuration.
    :raises FileNotFoundError: when ``redis-server`` is not installed.
    """

    def __init__(self, *, node_timeout: int = 15_000, settings: Mapping[str, str] | None = None) -> None:
        common = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout),
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
            **(settings or {}),
        }
        self.nodes = [_Node(common) for _ in range(2 * PRIMARIES)]
        self.password = self.nodes[0].password
        for node in self.nodes:
            node.password = self.password
            node.settings["masterauth"] = self.password
        self._open = ExitStack()

    @property
    def host(self) -> str:
        """Where the nodes listen."""
        return HOST

    @property
    def port(self) -> int:
        """The port of one of the nodes."""
        return self.nodes[0].port

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for node in self.nodes:
                opened.enter_context(node)
            self._join()
            self._open = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def client(self, node: _Node) -> redis.Redis:
        """Return a client of one node; the caller closes it."""
        import redis

        return redis.Redis(host=node.host, port=node.port, password=self.password, socket_timeout=10)

    def ask(self, node: _Node, *command: Any) -> Any:
        """Send one command to one node."""
        with self.client(node) as client:
            return client.execute_command(*command)

    def primary_of(self, slot: int) -> _Node:
        """Return the node that serves a slot, as a node says that runs."""
        from redis.cluster import parse_cluster_slots

        running = next(node for node in self.nodes if node.is_running)
        for (first, last), found in parse_cluster_slots(self.ask(running, "CLUSTER SLOTS")).items():
            if first <= slot <= last:
                return self.node_at(found["primary"][1])
        raise LookupError(f"slot {slot} is served by no node")

    def node_at(self, port: int) -> _Node:
        """Return the node that listens on a port."""
        return next(node for node in self.nodes if node.port == port)

    def primaries(self) -> list[_Node]:
        """Return the nodes that serve slots."""
        return list(dict.fromkeys(self.primary_of(_first(i)) for i in range(PRIMARIES)))

    def kill(self, node: _Node) -> None:
        """End a node's process at once."""
        os.kill(node.pid, signal.SIGKILL)
        node.stop()

    def fail_over(self, replica: _Node) -> None:
        """Let a replica that has everything take over from its primary, which becomes its replica.

        Without a vote: nodes do not vote again so soon for a replica of the same primary.
        """
        self.ask(replica, "CLUSTER FAILOVER", "TAKEOVER")
        self.wait(lambda: all(self._sees_primary(node, replica) for node in self.nodes), "the failover")
        self.wait_until_whole()

    def _sees_primary(self, node: _Node, primary: _Node) -> bool:
        return any(int(found[2][1]) == primary.port for found in self.ask(node, "CLUSTER SLOTS"))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so.

        :raises RuntimeError: it does not become so.
        """
        import redis

        limit = time.monotonic() + _START_SECONDS
        while time.monotonic() < limit:
            try:
                if condition():
                    return
            except (redis.RedisError, LookupError):
                pass  # not yet
            time.sleep(0.02)
        raise RuntimeError(f"Redis Cluster: {what} did not happen:\n{self.nodes[0].log()}")

    def wait_until_whole(self) -> None:
        """Wait until all nodes that run say that the cluster is well, and replicas have what their primaries have."""
        self.wait(lambda: all(self._is_well(node) for node in self.nodes if node.is_running), "being whole")

    def _is_well(self, node: _Node) -> bool:
        info, facts = self.ask(node, "CLUSTER INFO"), self.ask(node, "INFO", "replication")
        linked = facts["role"] == "master" or facts["master_link_status"] == "up"
        return bool(info["cluster_state"] == "ok" and linked)

    def _join(self) -> None:
        first = self.nodes[0]
        for i, node in enumerate(self.nodes):
            self.ask(node, "CLUSTER SET-CONFIG-EPOCH", i + 1)
            if i < PRIMARIES:
                self.ask(node, "CLUSTER ADDSLOTSRANGE", _first(i), _first(i + 1) - 1)
            if node is not first:
                self.ask(node, "CLUSTER MEET", first.host, first.port, first.bus_port)
        self.wait(lambda: all(self._knows_all(node) for node in self.nodes), "that all nodes know each other")
        for i in range(PRIMARIES):
            name = self.ask(self.nodes[i], "CLUSTER MYID").decode()
            self.ask(self.nodes[PRIMARIES + i], "CLUSTER REPLICATE", name)
        self.wait_until_whole()
        self.wait(lambda: all(self._replicas(node) == 1 for node in self.nodes[:PRIMARIES]), "that replicas follow")

    def _knows_all(self, node: _Node) -> bool:
        return int(self.ask(node, "CLUSTER INFO")["cluster_known_nodes"]) == len(self.nodes)

    def _replicas(self, node: _Node) -> int:
        return int(self.ask(node, "INFO", "replication")["connected_slaves"])


def _first(primary: int) -> int:
    return _SLOTS * primary // PRIMARIES
