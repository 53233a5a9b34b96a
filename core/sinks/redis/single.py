"""A single Redis server: ranks are read under WATCH, compared here, and written with their records in one MULTI."""

from __future__ import annotations

from typing import Any

from export_queue.core.errors import SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Rejection
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import COLLISIONS, Collision, code_of, explain, until_undisturbed
from export_queue.core.sinks.redis.floor import READ_FLOOR, stale_text
from export_queue.core.sinks.redis.incarnation import SHOWN, Incarnations
from export_queue.core.sinks.redis.layout import Command
from export_queue.core.sinks.redis.replicas import wait_for_replicas
from export_queue.core.sinks.redis.servers import agree_on_shards
from export_queue.core.sinks.redis.targets import Records, Target, decide
from export_queue.core.sinks.redis.tombstones import sweep_hashes


class SingleServer:
    """One Redis server; see :class:`~export_queue.core.sinks.redis.servers.Servers`.

    :param connection: to the server, which has been checked.
    :param target: what a record is.
    :param incarnations: those that the sink has seen.
    :param wanted_shards: over how many hashes ranks must be spread; None for any number.
    :param retry: how often a batch is tried that others disturb, and the pauses in between.
    """

    def __init__(
        self,
        connection: Connection,
        target: Target,
        incarnations: Incarnations,
        *,
        wanted_shards: int | None,
        retry: Retry = COLLISIONS,
    ) -> None:
        self.is_known = False
        self._connection = connection
        self._target = target
        self._incarnations = incarnations
        self._wanted_shards = wanted_shards
        self._shards = 0
        self._retry = retry

    def prepare(self) -> None:
        """Agree on the number of shards."""
        self._shards = agree_on_shards(
            self,
            self._incarnations,
            name=self._connection.server,
            number=layout.NUMBER,
            proposed=self._wanted_shards or layout.DEFAULT_SHARDS,
            wanted=self._wanted_shards,
        )
        self.is_known = True

    def ask(self, key: bytes, *commands: Command, **how: Any) -> list[Reply]:
        """Send commands; all keys lie on this server."""
        return self._ask(*commands, **how)

    def _ask(self, *commands: Command, **how: Any) -> list[Reply]:
        try:
            return self._connection.ask_all(*commands, **how)
        except Exception:
            self.is_known = False
            raise

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        """Nothing: control record and data lie in one server, and are lost together."""

    def show(self, fence: int) -> Command:
        """Leave a fence beside the incarnation; each batch that goes on looks at both."""

        def raise_fence() -> None:
            _, (found,) = self._ask(("WATCH", layout.CONTROL), ("HMGET", layout.CONTROL, SHOWN))
            if int(found or 0) >= fence:
                self._ask(("UNWATCH",))
                return
            *_, done = self._ask(("MULTI",), ("HSET", layout.CONTROL, SHOWN, str(fence)), ("EXEC",))
            if done is None:
                raise Collision

        until_undisturbed(raise_fence, f"Redis at {self._connection.server}: xq:control changes all the time")
        return ()

    def write(self, operations: Operations) -> ApplyResult:
        """Write all at once, or by parts where others write to the same shards."""
        written, collisions = 0, 0
        rejected: list[Rejection] = []
        parts = [self._target.place(operations, self._shards)]
        while parts:
            part = parts.pop()
            outcome = self._attempt(part)
            if outcome is not None:
                written += outcome.written
                rejected += outcome.rejected
                collisions = 0
                continue
            collisions += 1
            if collisions == self._retry.attempts:
                raise SinkUnavailable(
                    f"Redis at {self._connection.server}: {collisions} tries of one batch met other writers of its"
                    " records"
                )
            # the first time at once; then smaller, which meets fewer others, and after a moment
            parts += (part.halves() if collisions > 1 else None) or (part,)
            if collisions > 1:
                self._retry.sleep(self._retry.pause(collisions - 1))
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def _attempt(self, part: Records) -> ApplyResult | None:
        """Compare and write in one transaction; None if another client wrote to one of its shards meanwhile."""
        checked = self._target.checked_keys(part)
        reads: list[Command] = [("WATCH", *part.shards, layout.CONTROL), READ_FLOOR]
        reads += [("HMGET", name, *[part.fields[i] for i in group]) for name, group in part.shards.items()]
        reads += [("TYPE", key) for key in checked]
        reads.append(self._incarnations.look(layout.CONTROL))
        _, floor, *found, incarnation = self._ask(*reads)
        self._incarnations.check(layout.CONTROL, incarnation, server=self._connection.server)
        types = dict(zip(checked, found[len(part.shards) :], strict=True))
        known = found[: len(part.shards)]
        decision = decide(part, known, types, repeats=self._target.repeats, stale=stale_text(floor))
        writes = self._target.writes(part, decision.newer + decision.repeated)
        if not writes:
            self._ask(("UNWATCH",))
            return ApplyResult(0, 0, decision.rejected)
        *_, answers = self._ask(("MULTI",), *writes, *decision.ranks, ("EXEC",))
        if answers is None:
            return None
        for answer in answers:
            if isinstance(answer, Exception):
                if code_of(answer) == "WRONGTYPE":
                    return None  # a key became something else just now: the next try sees it
                raise explain(answer, self._connection.server) from answer
        return ApplyResult(len(decision.newer), 0, decision.rejected)

    def sweep(self, floor: int) -> int:
        """Remove tombstones from all hashes of ranks."""
        names = layout.rank_hashes(self._shards)
        return sweep_hashes(self._ask, names, stale_text(floor), f"Redis at {self._connection.server}")

    def wait_for_replicas(self, *, wanted: int, seconds: float) -> None:
        """Wait for the server's replicas."""
        try:
            wait_for_replicas({self._connection: layout.WAITED}, wanted=wanted, seconds=seconds)
        except Exception:
            self.is_known = False
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
