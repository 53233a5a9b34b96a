"""A single Redis server: ranks or a fence are read under WATCH, compared here, and records are written in one MULTI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from export_queue.core.errors import SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.guards import Claim
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Rejection
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import COLLISIONS, Collision, code_of, explain, until_undisturbed
from export_queue.core.sinks.redis.floor import stale_text
from export_queue.core.sinks.redis.incarnation import SHOWN, Incarnations
from export_queue.core.sinks.redis.packing import Command
from export_queue.core.sinks.redis.pieces import Batch, Piece, RankedPiece
from export_queue.core.sinks.redis.replicas import wait_for_replicas
from export_queue.core.sinks.redis.servers import agree_on_shards
from export_queue.core.sinks.redis.sweep import sweep_hashes
from export_queue.core.sinks.redis.targets import Target
from export_queue.core.sinks.redis.unit_fences import ClaimedPiece


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
        self._name = f"Redis at {connection.server}"
        self._target = target
        self._incarnations = incarnations
        self._wanted_shards = wanted_shards
        self._shards = 0
        self._retry = retry

    def prepare(self) -> None:
        self._shards = agree_on_shards(
            self,
            self._incarnations,
            name=self._connection.server,
            number=layout.NUMBER,
            proposed=self._wanted_shards or layout.DEFAULT_SHARDS,
            wanted=self._wanted_shards,
        )
        self.is_known = True

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        return self._ask(*commands)

    def _ask(self, *commands: Command) -> list[Reply]:
        try:
            return self._connection.ask_all(*commands)
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

        until_undisturbed(raise_fence, f"{self._name}: xq:control changes all the time")
        return ()

    def write(self, operations: Operations) -> ApplyResult:
        look = self._incarnations.look(layout.CONTROL)
        check = partial(self._incarnations.check, layout.CONTROL, server=self._connection.server)
        batch = Batch(operations, self._shards)
        return self._write(batch, lambda part: RankedPiece(batch, part, self._target, look=look, check=check))

    def write_under(self, claim: Claim, operations: Operations) -> ApplyResult:
        """Write piece by piece, while a unit has the fence of a claim.

        :raises LeaseLost: it has another one.
        """
        batch = Batch(operations)
        return self._write(batch, lambda part: ClaimedPiece(batch, part, self._target, claim=claim, sink=self._name))

    def _write(self, batch: Batch, piece_of: Callable[[range], Piece]) -> ApplyResult:
        """Write all pieces, and those again that other clients disturb."""
        written, collisions = 0, 0
        rejected: list[Rejection] = []
        parts = batch.cut()
        while parts:
            spoilt: list[range] = []
            for piece, took_effect in self._write_pieces(map(piece_of, parts)):
                if took_effect:
                    written += piece.written
                    rejected += piece.rejected
                else:
                    spoilt.append(piece.part)
            collisions = collisions + 1 if len(spoilt) == len(parts) else 1
            if spoilt and collisions == self._retry.attempts:
                raise SinkUnavailable(f"{self._name}: {collisions} tries of one batch met other writers of its records")
            parts = spoilt
            if spoilt and collisions > 1:  # the first time at once; then smaller, which meets fewer others, and later
                parts = [half for part in spoilt for half in batch.halves(part)]
                self._retry.sleep(self._retry.pause(collisions - 1))
        return ApplyResult(written, len(batch) - written - len(rejected), tuple(rejected))

    def _write_pieces(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, bool]]:
        """Write pieces, of which three are at work at once: one is written, the next is looked up, one is made.

        The transaction of a piece travels with the reads of the next one. Its EXEC ends all watches, so that the WATCH
        behind it is that of the next piece alone.

        :returns: each piece, and whether its transaction took effect: not if another client changed what it relies on.
        """
        connection = self._connection
        written: Piece | None = None
        looked_up: Piece | None = None
        made = next(pieces, None)
        try:
            while looked_up is not None or made is not None:
                transaction = looked_up.transaction if looked_up is not None else ()
                reads = made.reads if made is not None else ()
                connection.send([*transaction, *reads])
                written, looked_up, made = looked_up, made, None
                if looked_up is not None:  # the server is at work meanwhile
                    looked_up.pack()
                    made = next(pieces, None)
                if written is not None:
                    *_, outcome = connection.receive_all(len(transaction))
                    yield written, self._took_effect(outcome)
                if looked_up is not None:
                    looked_up.judge(connection.receive_all(len(reads)))
        except BaseException:
            connection.close()  # replies may be on their way, and keys are watched
            self.is_known = False
            raise

    def _took_effect(self, outcome: Reply) -> bool:
        """Read the reply to EXEC, or to the UNWATCH in its place where there was nothing to write."""
        if outcome is None:
            return False
        for answer in outcome if isinstance(outcome, list) else ():
            if isinstance(answer, Exception):
                if code_of(answer) == "WRONGTYPE":
                    return False  # a key became something else just now: the next look sees it
                raise explain(answer, self._connection.server) from answer
        return True

    def sweep(self, floor: int) -> int:
        names = layout.rank_hashes(self._shards)
        return sweep_hashes(self._ask, names, stale_text(floor), self._name)

    def wait_for_replicas(self, *, wanted: int, seconds: float) -> None:
        try:
            wait_for_replicas({self._connection: layout.WAITED}, wanted=wanted, seconds=seconds)
        except Exception:
            self.is_known = False
            raise

    def close(self) -> None:
        self._connection.close()
