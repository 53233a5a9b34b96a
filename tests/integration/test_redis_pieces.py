"""Batches of many pieces in Redis: what happens between the look at a piece and its transaction, and amid its bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest
import redis
from tests.support.proxy import Cut, CuttingProxy
from tests.support.redis_records import Make, admit, before, making, puts
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from export_queue import ApplyResult, Claim, LeaseLost, Operations, RedisSink, Sink, SinkLostData, SinkUnavailable
from export_queue.core.sinks.redis import pieces
from export_queue.core.sinks.redis.packing import pack

fork = multiprocessing.get_context("fork")
PIECE = 5
"""Records of a piece."""
RECORDS = 6 * PIECE
DOOMED = "export-queue-doomed"
PATIENCE = 60.0
"""Seconds that even a slow machine does not need."""
CLAIM = Claim("q/1/0", 7)
IDS = [b"%d/%02d" % (n % 3, n) for n in range(RECORDS)]
"""As members of three sets, too."""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "ROWS", PIECE)


@pytest.fixture
def make(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Make]:
    with making(redis_server, key="k:$id", shards=7) as make_sink:

        def make_admitted(**options: Any) -> RedisSink:
            return admit(make_sink(**options))

        yield make_admitted


def all_of(seq: int) -> Operations:
    return puts(*IDS, seq=seq, document=b'{"seq":%d}' % seq)


def seqs_written(client: redis.Redis, target: str) -> list[int]:
    """Read the sequence of each record's document; 0 where there is none, 1 for any member of a set."""
    if target == "set":
        return [int(client.sismember(b"k:" + name, member)) for name, _, member in (i.partition(b"/") for i in IDS)]
    if target == "hash":
        return [int(client.hget(b"k:" + record, "seq") or 0) for record in IDS]
    return [int((client.get(b"k:" + record) or b'{"seq":0}')[7:-1]) for record in IDS]


def seqs_noted(client: redis.Redis, target: str) -> list[int]:
    """Read the sequence of each record's rank; 0 where there is none."""
    kind = "member" if target == "set" else "rank"
    found = {f: int(r) >> 1 for key in client.keys(f"xq:{kind}:*") for f, r in client.hgetall(key).items()}
    fields = [b"k:" + (record.replace(b"/", b"\0") if target == "set" else record) for record in IDS]
    return [found.get(field, 0) for field in fields]


def test_the_transaction_of_a_piece_travels_with_the_reads_of_the_next(make):
    sink = make()
    sink.apply(puts(b"0/warm"))
    sent: list[list[Any]] = []
    send = sink._connection.send
    sink._connection.send = lambda commands: (sent.append(list(commands)), send(commands))
    assert sink.apply(all_of(5)) == ApplyResult(RECORDS, 0)
    assert len(sent) == 7, "one round trip a piece, and the first look"
    for commands in sent[1:-1]:
        assert (commands[0], commands[commands.index(("EXEC",)) + 1][0]) == (("MULTI",), "WATCH")


@pytest.mark.parametrize("target", ["string", "hash", "set"])
def test_a_piece_that_others_disturb_is_written_after_the_others(make, redis_client, target):
    sink, other = make(target=target), make(target=target)
    newer = puts(*IDS[::2], seq=9, document=b'{"seq":9}')
    pending = iter([None, None, newer])  # when the third piece has been looked up

    def disturb() -> None:
        if (batch := next(pending, None)) is not None:
            other.apply(batch)

    transactions = before(sink, "MULTI", disturb, times=100)
    result = sink.apply(all_of(5))
    assert len(transactions) > 6, "one was refused"
    assert result.written + result.stale == RECORDS
    assert 0 < result.stale < len(newer)
    expected = [9 if n % 2 == 0 else 5 for n in range(RECORDS)]
    assert seqs_noted(redis_client, target) == expected
    if target != "set":
        assert seqs_written(redis_client, target) == expected


def test_a_sweep_amid_a_batch_makes_the_rest_of_it_stale(make, redis_client):
    sink, sweeper = make(), make()
    moments = iter([False, False, True])
    before(sink, "MULTI", lambda: next(moments) and sweeper.sweep(store_id="s", floor=25), times=3)
    result = sink.apply(all_of(15))
    assert (result.written, result.stale) == (2 * PIECE, RECORDS - 2 * PIECE)
    assert sorted(seqs_written(redis_client, "string"))[-2 * PIECE - 1 :] == [0, *[15] * 2 * PIECE]


def test_data_that_is_lost_amid_a_batch_is_noticed_before_the_next_piece(make, redis_client):
    sink = make()
    sink.apply(all_of(5))
    moments = iter([False, False, True])
    before(sink, "MULTI", lambda: next(moments) and redis_client.flushall(), times=3)
    for _ in range(2):
        with pytest.raises(SinkLostData, match="emptied"):
            sink.apply(all_of(6))
    assert redis_client.keys("k:*") == []


def test_a_claim_amid_a_batch_keeps_the_rest_of_it_out(make, redis_client):
    sink, younger = make(guard="fence"), make(guard="fence")
    sink.claim([CLAIM])
    moments = iter([False, False, True])
    before(sink, "MULTI", lambda: next(moments) and younger.claim([Claim(CLAIM.unit, 8)]), times=3)
    with pytest.raises(LeaseLost, match="taken over"):
        sink.under(CLAIM).apply(all_of(5))
    assert seqs_written(redis_client, "string") == [5] * 2 * PIECE + [0] * (RECORDS - 2 * PIECE)
    assert younger.under(Claim(CLAIM.unit, 8)).apply(all_of(4)).written == RECORDS


def test_operations_that_are_rejected_keep_their_places(make, redis_client):
    redis_client.set("k:1", "a string")
    result = make(target="set").apply(puts(*reversed(IDS)))
    assert [one.position for one in result.rejected] == [n for n in range(RECORDS) if IDS[-1 - n].startswith(b"1/")]
    assert result.written == RECORDS - len(result.rejected)


def test_a_large_record_is_a_piece_alone(make, redis_client, monkeypatch):
    monkeypatch.setattr(pieces, "BYTES", 100)
    documents = [b"x" * size for size in (10, 500, 10, 10, 100, 90, 0)]
    batch = Operations(["c"] * 7, IDS[:7], documents, [5] * 7, range(7))
    assert make().apply(batch) == ApplyResult(7, 0)
    assert redis_client.mget([b"k:" + record for record in IDS[:7]]) == documents


# Kills


class Killed:
    """A process that applies a batch, and is killed as it sends.

    :param sink: its own; it was admitted and never used.
    :param at: the number of the send.
    :param share: how much of the bytes has gone out.
    """

    def __init__(self, sink: RedisSink, writer: Sink, operations: Operations, at: int, share: float) -> None:
        self._sink, self._writer, self._operations, self._at, self._share = sink, writer, operations, at, share
        self._sent = 0
        process = fork.Process(target=self._run)
        process.start()
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)
        self.is_over = process.exitcode == 0
        """Whether it had come to its end before."""

    def _run(self) -> None:
        try:
            connection = self._sink._connection
            connection.ask("CLIENT", "SETNAME", DOOMED)
            send = connection.send

            def send_and_die(commands: Sequence[Any]) -> None:
                if self._sent == self._at:
                    whole = b"".join(pack(commands))
                    connection._connection._sock.sendall(whole[: int(len(whole) * self._share)])
                    os.kill(os.getpid(), signal.SIGKILL)
                self._sent += 1
                send(commands)

            connection.send = send_and_die  # type: ignore[method-assign]
            self._writer.apply(self._operations)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # nothing that was inherited is cleaned up here


@pytest.mark.parametrize(
    ("target", "guard"),
    [
        *(("string", "seq"), ("set", "seq"), ("string", "fence")),
        pytest.param("hash", "seq", marks=pytest.mark.full("hashes go the way of strings")),
        pytest.param("hash", "fence", marks=pytest.mark.full("hashes go the way of strings")),
    ],
)
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_a_drain_that_is_killed_between_the_sends_leaves_whole_pieces(
    make, redis_client, target, guard: Literal["seq", "fence"], share: float
):
    """Dead between two sends, amid the bytes of one, and before the answer of the last; all of it comes again."""
    witness = make(target=target, guard=guard)
    above = (lambda sink: sink.under(CLAIM)) if guard == "fence" else (lambda sink: sink)
    if guard == "fence":
        witness.claim([CLAIM])
    for at in range(8):
        seq = 5 + at
        redis_client.delete(*(b"k:" + record for record in IDS), "k:0", "k:1", "k:2")
        sink = make(target=target, guard=guard)
        sink.close()  # what is open is the child's own
        killed = Killed(sink, above(sink), all_of(seq), at, share)
        wait_until(lambda: DOOMED not in str(redis_client.client_list()), "the dead one is still connected")
        written = [bool(found) for found in seqs_written(redis_client, target)]
        if guard == "seq":
            assert written == [noted == seq for noted in seqs_noted(redis_client, target)], "record without its rank"
        whole = min(RECORDS, PIECE * max(0, at - (share < 1)))
        assert (sum(written), killed.is_over) == (whole, at == 7), (at, share)
        result = above(witness).apply(all_of(seq))
        assert result == ApplyResult(*((RECORDS, 0) if guard == "fence" else (RECORDS - whole, whole)))
        assert all(seqs_written(redis_client, target))


def test_a_connection_that_breaks_amid_answers_leaves_records_that_have_their_ranks(make, redis_server, redis_client):
    """What was acknowledged to nobody may be there; it is stale when it comes again, and the rest is written."""
    direct, results = make(), set()
    with CuttingProxy(redis_server.host, redis_server.port) as proxy:
        sink = make(host="127.0.0.1", port=proxy.port)
        sink.apply(all_of(4))
        proxy.arm()
        sink.apply(all_of(5))
        size = proxy.counted("to_client")
        for seq, after in enumerate(range(0, size, max(1, size // 40)), start=6):
            sink.apply(puts(b"0/warm", seq=seq))  # over a connection that is there
            proxy.arm(Cut(direction="to_client", after=after, how="reset"))
            with pytest.raises(SinkUnavailable):
                sink.apply(all_of(seq))
            proxy.disarm()
            result = direct.apply(all_of(seq))
            assert result.written + result.stale == RECORDS
            results.add(result.stale)
            assert seqs_written(redis_client, "string") == seqs_noted(redis_client, "string") == [seq] * RECORDS
    assert len(results) > 3
    assert all(stale % PIECE == 0 for stale in results)


# Writers at once


def apply_all(server: RedisServer, options: dict[str, Any], batches: Sequence[Operations]) -> None:
    """Apply batches in a process of its own, as one drain does."""
    try:
        pieces.ROWS = 40
        sink = admit(RedisSink(server.host, server.port, password=server.password, key="k:$id", **options))
        for batch in batches:
            result = sink.apply(batch)
            assert result.written + result.stale == len(batch)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize(
    ("target", "shards"),
    [
        *(("string", 7), ("set", 7)),
        pytest.param("hash", 7, marks=pytest.mark.full("hashes go the way of strings")),
        pytest.param("string", 200, marks=pytest.mark.full("few shards meet more often")),
        pytest.param("string", 1, marks=pytest.mark.full("seven shards meet often enough")),
    ],
)
def test_four_writers_at_once_leave_each_record_at_its_highest_rank(redis_server, redis_client, target, shards):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    ids = [b"%d/%04d" % (n % 3, n) for n in range(600)]
    highest: dict[bytes, tuple[int, bytes | None]] = {}
    works: list[list[Operations]] = []
    for writer in range(4):
        batches = []
        for _ in range(6):
            chosen = generator.sample(ids, 300)
            seqs = [generator.randrange(1, 1 << 40) * 4 + writer for _ in chosen]
            documents = [None if generator.random() < 0.25 else b'{"seq":"%d"}' % seq for seq in seqs]
            batches.append(Operations(["c"] * 300, chosen, documents, seqs, range(300)))
            for record, seq, document in zip(chosen, seqs, documents, strict=True):
                highest[record] = max(highest.get(record, (0, None)), (seq, document), key=lambda one: one[0])
        works.append(batches)
    options = {"target": target, "shards": shards}
    processes = [fork.Process(target=apply_all, args=(redis_server, options, batches)) for batches in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 4
    ranks = {
        field.partition(b":")[2].replace(b"\0", b"/"): int(rank)
        for name in redis_client.keys("xq:rank:*") + redis_client.keys("xq:member:*")
        for field, rank in redis_client.hgetall(name).items()
    }
    assert ranks == {record: 2 * seq + (document is not None) for record, (seq, document) in highest.items()}
    for record, (_, document) in highest.items():
        name, _, member = record.partition(b"/")
        if target == "set":
            assert redis_client.sismember(b"k:" + name, member) == (document is not None)
        elif target == "hash":
            assert redis_client.hgetall(b"k:" + record) == ({b"seq": document[8:-2]} if document else {})
        else:
            assert redis_client.get(b"k:" + record) == document
