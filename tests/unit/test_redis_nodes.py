"""What becomes of connections to a Redis Cluster when one of its nodes fails."""

from __future__ import annotations

import pytest

from export_queue import SinkUnavailable
from export_queue.core.sinks.redis.nodes import exchange_all


class FakeConnection:
    """A connection that counts the replies that nobody has read, and breaks on demand."""

    def __init__(self, server: str, *, breaks: str = "") -> None:
        self.server = server
        self.breaks = breaks
        self.unread = 0

    def send(self, commands) -> None:
        if self.breaks == "send":
            raise SinkUnavailable("gone")
        self.unread += len(commands)

    def receive(self, count: int) -> list[bytes]:
        if self.breaks == "receive":
            raise SinkUnavailable("gone")
        self.unread -= count
        return [b"OK"] * count

    def close(self) -> None:
        self.unread = 0


@pytest.mark.parametrize("breaks", ["send", "receive"])
def test_when_one_node_fails_no_reply_of_another_is_left_for_the_next_batch(breaks):
    nodes = [FakeConnection("a:1"), FakeConnection("b:1", breaks=breaks), FakeConnection("c:1")]
    with pytest.raises(SinkUnavailable):
        exchange_all({node: [("PING",)] for node in nodes})
    assert [node.unread for node in nodes] == [0, 0, 0]
