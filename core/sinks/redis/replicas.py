"""The wait for replicas: a batch is acknowledged once enough of them have it."""

from __future__ import annotations

from collections.abc import Mapping

from export_queue.core.errors import SinkUnavailable
from export_queue.core.sinks.redis.connection import Connection
from export_queue.core.sinks.redis.errors import explain
from export_queue.core.sinks.redis.nodes import exchange_all
from export_queue.core.sinks.redis.packing import Command


def wait_for_replicas(keys: Mapping[Connection, bytes], *, wanted: int, seconds: float) -> None:
    """Wait until replicas have everything that their primaries have written up to now.

    ``WAIT`` promises only what its own connection wrote. Another one may have written what a batch needs, and this one
    finds it stale; so each primary is given something to write first. Replicas follow in order: whoever has that has
    all that was before it.

    :param keys: a key of ours that each primary serves.
    :param wanted: how many replicas each primary needs.
    :param seconds: how long to wait.
    :raises SinkUnavailable: there are fewer.
    """
    waiting: list[Command] = [("WAIT", str(wanted), str(max(1, int(seconds * 1000))))]
    replies = exchange_all({node: [("SET", key, "1"), *waiting] for node, key in keys.items()})
    for node, answers in replies.items():
        for answer in answers:
            if isinstance(answer, Exception):
                raise explain(answer, node.server) from answer
        if (found := answers[-1]) < wanted:
            raise SinkUnavailable(
                f"Redis at {node.server}: expected {wanted} replicas to have the batch within {seconds:g} s,"
                f" found {found}",
                hint="bring the replicas back, or ask for fewer (wait_replicas); the batch is sent again",
            )
