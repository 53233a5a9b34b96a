"""A single Redis server: ranks or a fence are read under WATCH, compared here, and records are written in one MULTI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from export_queue.core.errors import SinkUnavailable
from export_queue.core.queue import buckets_of
from export_queue.core.sinks.guards import Claim
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Rejection
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import COLLISIONS, Connection, Reply, change_watched
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.packing import Command
from export_queue.core.sinks.redis.pieces import Batch, Piece, RankedPiece
from export_queue.core.sinks.redis.servers import SHOWN, Incarnations, agree_on_shards, without_errors
from export_queue.core.sinks.redis.sweep import stale_text, sweep_hashes
from export_queue.core.sinks.redis.targets import Target
from export_queue.core.sinks.redis.unit_fences import ClaimedPiece


class SingleServer:
    """One Redis server; see :class:`~export_queue.core.sinks.redis.servers.Servers`.

    :param connection: connection to the server, which has been checked.
    :param target: what a record is.
    :param incarnations: the incarnations that the sink has seen.
    :param wanted_shards: required number of hashes of ranks; None for any.
    """

    def __init__(
        self, connection: Connection, target: Target, incarnations: Incarnations, *, wanted_shards: int | None
    ) -> None:
        self._connection = connection
        self._name = f"Redis at {connection.server}"
        self._target = target
        self._incarnations = incarnations
        self._wanted_shards = wanted_shards
        self._shards = 0
        self._retry = COLLISIONS

    def prepare(self) -> None:
        self._shards = agree_on_shards(
            self,
            self._incarnations,
            name=self._connection.server,
            number=layout.NUMBER,
            proposed=self._wanted_shards or layout.DEFAULT_SHARDS,
            wanted=self._wanted_shards,
        )

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        return self._connection.ask_all(*commands)

    def keys(self, name: bytes) -> Mapping[Connection, bytes]:
        return {self._connection: name}

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        pass  # control record and data are in one server, and are lost together

    def show(self, fence: int) -> Command:
        """Leave a fence next to the incarnation. Every batch reads both."""

        def changes(replies: Sequence[Reply]) -> Sequence[Command]:
            ((found,),) = replies
            return [] if int(found or 0) >= fence else [("HSET", layout.CONTROL, SHOWN, str(fence))]

        complaint = f"{self._name}: xq:control changes all the time"
        read = ("HMGET", layout.CONTROL, SHOWN)
        change_watched(self._connection.ask_all, [layout.CONTROL], [read], changes, complaint)
        return ()

    def read(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        replies = self._connection.exchange([command for _, command in commands]) if commands else []
        return without_errors(replies, self._connection.server)

    def rank_hashes(self, prefix: bytes) -> Sequence[bytes]:
        return [prefix + b"%d" % shard for shard in range(self._shards)]

    def hashes_of(self, prefix: bytes, ids: Sequence[bytes], keys: Sequence[bytes]) -> Sequence[bytes]:
        return [prefix + b"%d" % shard for shard in buckets_of(ids, self._shards)]

    def write(self, operations: Operations, *, repairs: bool = False) -> ApplyResult:
        look = self._incarnations.look(layout.CONTROL)
        check = partial(self._incarnations.check, layout.CONTROL, server=self._connection.server)
        batch = Batch(operations, self._shards)
        piece_of = partial(RankedPiece, batch, target=self._target, look=look, check=check, repairs=repairs)
        return self._write(batch, piece_of)

    def write_under(self, claim: Claim, operations: Operations) -> ApplyResult:
        """Write piece by piece while the unit has the fence of the claim.

        :raises LeaseLost: the unit has another fence.
        """
        batch = Batch(operations)
        return self._write(batch, lambda part: ClaimedPiece(batch, part, self._target, claim=claim, sink=self._name))

    def _write(self, batch: Batch, piece_of: Callable[[range], Piece]) -> ApplyResult:
        """Write all pieces, and repeat those with which other clients interfere."""
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
            # repeat once without a pause; later wait, and halve the pieces so that fewer other writers touch each
            if spoilt and collisions > 1:
                parts = [half for part in spoilt for half in batch.halves(part)]
                self._retry.sleep(self._retry.pause(collisions - 1))
        return ApplyResult(written, len(batch) - written - len(rejected), tuple(rejected))

    def _write_pieces(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, bool]]:
        """Write pieces in a pipeline: while one is written, the next one is read, and the one after that is made.

        The transaction of a piece is sent together with the reads of the next piece. Its EXEC ends all watches, so that
        the WATCH after it belongs to the next piece alone.

        :returns: each piece, and whether its transaction took effect: not if another client changed what it had read.
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
                if looked_up is not None:  # done while the server works
                    looked_up.pack()
                    made = next(pieces, None)
                if written is not None:
                    *_, outcome = connection.receive_all(len(transaction))
                    yield written, self._took_effect(outcome)
                if looked_up is not None:
                    looked_up.judge(connection.receive_all(len(reads)))
        except BaseException:
            connection.close()  # replies may still arrive, and keys are watched
            raise

    def _took_effect(self, outcome: Reply) -> bool:
        """Read the reply to EXEC, or to UNWATCH if there was nothing to write."""
        if outcome is None:
            return False
        for answer in outcome if isinstance(outcome, list) else ():
            if isinstance(answer, Exception):
                if code_of(answer) == "WRONGTYPE":
                    return False  # another client changed the type of a key; the repetition sees it
                raise explain(answer, self._connection.server) from answer
        return True

    def sweep(self, floor: int) -> int:
        names = layout.rank_hashes(self._shards)
        return sweep_hashes(self._connection.ask_all, names, stale_text(floor), self._name)

    def close(self) -> None:
        self._connection.close()
