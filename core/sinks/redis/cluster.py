"""A Redis Cluster: a script for each slot compares and writes, and many of them travel at once.

``WATCH`` guards one transaction of a connection, and a transaction of a cluster stays within one slot. Users' keys lie
all over the slots; so where a single server gets one transaction for a batch, a cluster would get hundreds, one after
the other. A script compares and writes in one step, and all of a batch's scripts travel together. It knows all
its keys: while a slot is moved, a node that has only some of them refuses instead of comparing with half of the ranks.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from export_queue.core.errors import ExportQueueError, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.floor import stale_text
from export_queue.core.sinks.redis.incarnation import Incarnations
from export_queue.core.sinks.redis.layout import rank_texts
from export_queue.core.sinks.redis.nodes import Nodes, exchange_all
from export_queue.core.sinks.redis.packing import Command, Packed, Sendable, joined, pack_words, packed, word_of
from export_queue.core.sinks.redis.replicas import wait_for_replicas
from export_queue.core.sinks.redis.servers import agree_on_shards, check_server
from export_queue.core.sinks.redis.targets import Records, Target, wrong_type

SCRIPT = b"""
local at, outcomes = 1, {}
local floor = redis.call('HGET', KEYS[1], 'xq:floor')
while at <= #ARGV do
  local field, rank, only, key = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local commands = tonumber(ARGV[at + 4])
  at = at + 5
  local known = redis.call('HGET', KEYS[1], field)
  local outcome = (not known or known < rank) and (not floor or floor < rank) and 1 or 0
  if only ~= '' then
    local found = redis.call('TYPE', key).ok
    if found ~= only and found ~= 'none' then outcome = found end
  end
  for _ = 1, commands do
    local last = at + tonumber(ARGV[at])
    if outcome == 1 then redis.call(unpack(ARGV, at + 1, last)) end
    at = last + 1
  end
  if outcome == 1 then redis.call('HSET', KEYS[1], field, rank) end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
"""
"""Compares and writes the records of a slot, those above the floor of its sweeps.

Keys: the hash of their ranks, then theirs. Arguments, record by record: field and text of the rank, the only type that
the key may have, the key, number of commands; of each command the number of its words, and they. Returns a record's
outcome: 1 written, 0 stale, or the wrong type that its key has."""
SWEEP_SCRIPT = b"""
local stale = redis.call('HGET', KEYS[1], 'xq:floor')
if not stale or stale < ARGV[1] then
  stale = ARGV[1]
  redis.call('HSET', KEYS[1], 'xq:floor', stale)
end
local page = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 500)
local removed = 0
for i = 1, #page[2], 2 do
  local field, rank = page[2][i], page[2][i + 1]
  if field ~= 'xq:floor' and rank <= stale and tonumber(string.sub(rank, -1)) % 2 == 0 then
    redis.call('HDEL', KEYS[1], field)
    removed = removed + 1
  end
end
return {page[1], removed}
"""
"""Raises the floor of a slot, and removes tombstones below it from a page of a hash of ranks. Key: the hash. Arguments:
the highest stale rank, the cursor of the page. Returns the next cursor, and how many were removed."""
SHOW_SCRIPT = b"""
local shown = redis.call('HGET', KEYS[1], 'shown')
if not shown or shown < ARGV[1] then
  shown = ARGV[1]
  redis.call('HSET', KEYS[1], 'shown', shown)
end
return shown
"""
"""Raises the fence of a primary. Key: the hash of its incarnation. Argument: 20 digits. Returns the fence."""
_RECORDS_AT_ONCE = 1000
"""Records of one call: a node serves nobody else while its script runs."""
_SWEPT_AT_ONCE = 500
"""Hashes of which a page is swept in one go."""
log = logging.getLogger("export_queue.sweep")

_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN")
"""Codes of slots that are being moved, or were."""
MOVES = Retry(attempts=30, first_pause=0.01, longest_pause=0.1)
"""How calls are repeated whose slots are being moved to another node."""


class _Moved(Exception):
    """A node does not serve the slot of a call any more, or not yet."""

    def __init__(self, reason: ExportQueueError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Cluster:
    """A Redis Cluster; see :class:`~export_queue.core.sinks.redis.servers.Servers`.

    :param seed: the node that the sink's description names.
    :param connect: makes a connection to a node, by host and port.
    :param target: what a record is.
    :param incarnations: those that the sink has seen.
    :param wanted_shards: how many hashes of ranks the sink asks for; None for any number.
    """

    def __init__(
        self,
        seed: Connection,
        connect: Callable[[str, int], Connection],
        target: Target,
        incarnations: Incarnations,
        *,
        wanted_shards: int | None,
    ) -> None:
        self.is_known = False
        self._name = seed.server
        self._nodes = Nodes(seed, connect=connect, check=check_server)
        self._target = target
        self._incarnations = incarnations
        self._wanted_shards = wanted_shards

    def prepare(self) -> None:
        self._nodes.look()
        agree_on_shards(
            self,
            self._incarnations,
            name=self._name,
            number=layout.NUMBER_IN_CLUSTERS,
            proposed=layout.SLOTS,
            wanted=self._wanted_shards,
        )
        self.is_known = True

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        with self._watched():
            return self._nodes.at(key).ask_all(*commands)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """After an error, ask again which node serves which slot."""
        try:
            yield
        except Exception:
            self.is_known = False
            raise

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        if not readmit:
            (noted,) = self.ask(control_key, ("HGET", control_key, "incarnations"))
            self._incarnations.expect(noted)
        for node, key, answer in self._ask_primaries(lambda key: (self._incarnations.look(key),)):
            self._incarnations.check(key, answer, server=node.server)

    def show(self, fence: int) -> Command:
        """Leave a fence in all primaries."""
        digits = rank_texts([fence])[0]
        for _, key, answer in self._ask_primaries(
            lambda key: (("SCRIPT", "LOAD", SHOW_SCRIPT), joined([_call(SHOW_SCRIPT), packed("1", key, digits)]))
        ):
            self._incarnations.note(key, int(answer))
        return ("incarnations", self._incarnations.to_text())

    def _ask_primaries(
        self, commands: Callable[[bytes], Sequence[Sendable]]
    ) -> Iterator[tuple[Connection, bytes, Reply]]:
        """Send commands to all primaries.

        :param commands: of a primary, by the key of the hash that holds its incarnation.
        :returns: the nodes, those keys, and the replies to the last command.
        """
        with self._watched():
            keys = self._control_keys()
            asked = {node: [self._incarnations.leave(key), *commands(key)] for node, key in keys.items()}
            for node, answers in exchange_all(asked).items():
                for answer in answers:
                    if isinstance(answer, Exception):
                        raise explain(answer, node.server) from answer
                yield node, keys[node], answers[-1]

    def _control_keys(self) -> dict[Connection, bytes]:
        """Return the key of the hash that holds each primary's incarnation."""
        return {node: layout.key_in_slot(layout.CONTROL, slot) for node, slot in self._nodes.primaries().items()}

    def write(self, operations: Operations) -> ApplyResult:
        """Write operations on distinct records.

        :raises SinkLostData: a node has lost what it had; nothing of the batch counts.
        :raises SinkUnavailable: a node is away, or slots were moved for too long; parts may be written.
        """
        records, ranks = self._target.locate(operations), pack_words(rank_texts(operations.ranks()))
        groups = layout.group_by_slot(list(map(word_of, records.keys)), self._target.hashes + b"{%b}")
        written, rejected = 0, []
        for start in range(0, max(map(len, groups.values())), _RECORDS_AT_ONCE):
            parts = {name: group[start : start + _RECORDS_AT_ONCE] for name, group in groups.items()}
            steps = {name: _step(self._target, records, ranks, name, part) for name, part in parts.items() if part}
            for name, outcomes in self._call(SCRIPT, steps).items():
                for i, outcome in zip(parts[name], outcomes, strict=True):
                    if isinstance(outcome, bytes):
                        rejected.append(wrong_type(i, records.keys[i], outcome))
                    else:
                        written += outcome
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def sweep(self, floor: int) -> int:
        """Raise the floor of all slots and remove the tombstones below it.

        The floor of a slot lies in the hash of its ranks. There each batch compares it in the step in which it writes,
        and the floor moves to another node together with the ranks.
        """
        names = layout.rank_hashes_of_slots() if floor else []
        stale, removed = stale_text(floor), 0
        for start in range(0, len(names), _SWEPT_AT_ONCE):
            cursors = dict.fromkeys(names[start : start + _SWEPT_AT_ONCE], b"0")
            while cursors:
                pages = {name: packed("1", name, stale, cursor) for name, cursor in cursors.items()}
                answers = self._call(SWEEP_SCRIPT, pages)
                removed += sum(count for _, count in answers.values())
                cursors = {name: cursor for name, (cursor, _) in answers.items() if cursor != b"0"}
            if start % (20 * _SWEPT_AT_ONCE) == 19 * _SWEPT_AT_ONCE:
                log.info(
                    "Redis at %s: %d of %d hashes swept, %d tombstones removed", self._name, start, len(names), removed
                )
        return removed

    def wait_for_replicas(self, *, wanted: int, seconds: float) -> None:
        with self._watched():
            keys = {node: layout.key_in_slot(layout.WAITED, slot) for node, slot in self._nodes.primaries().items()}
            wait_for_replicas(keys, wanted=wanted, seconds=seconds)

    def close(self) -> None:
        self._nodes.close()

    def _call(self, script: bytes, calls: Mapping[bytes, Packed]) -> dict[bytes, Any]:
        """Call a script many times, each at the node that serves its key, again where that is another one by now.

        :param calls: number of keys, keys and arguments of each call, by one of its keys.
        :returns: the answers.
        """
        left, answers = dict(calls), dict[bytes, Any]()

        def call_what_is_left() -> None:
            try:
                moved = self._call_once(script, left, answers)
            except Exception:
                self._nodes.forget()
                raise
            if moved is not None:
                self._nodes.forget()
                raise _Moved(moved)

        try:
            MOVES.call(call_what_is_left, worth_repeating=lambda error: isinstance(error, _Moved))
        except _Moved as error:
            raise SinkUnavailable(f"{error}, {MOVES.attempts} times", hint=error.reason.hint) from None
        return answers

    def _call_once(
        self, script: bytes, left: dict[bytes, Packed], answers: dict[bytes, Any]
    ) -> ExportQueueError | None:
        """Make the calls that are left, and move those that were answered to the answers.

        :returns: why a call is still left; None if there is none.
        :raises ExportQueueError: a call failed for another reason than a slot that was moved.
        """
        # The script goes before the calls: a server that was restarted, or took over, has none.
        load: Command = ("SCRIPT", "LOAD", script)
        call = _call(script)
        by_node: dict[Connection, list[bytes]] = {}
        for key in left:
            by_node.setdefault(self._nodes.at(key), []).append(key)
        control_keys = self._control_keys()
        commands: dict[Connection, list[Sendable]] = {}
        for node, keys in by_node.items():
            control = control_keys[node]
            looks = (self._incarnations.leave(control), self._incarnations.look(control))
            commands[node] = [*looks, load, *(joined([call, left[key]]) for key in keys)]
        replies = exchange_all(commands)
        moved: ExportQueueError | None = None
        failure: ExportQueueError | None = None
        for node, keys in by_node.items():
            _, incarnation, _, *own = replies[node]
            if not isinstance(incarnation, Exception):  # else its slot has just moved: the next look finds another
                self._incarnations.check(control_keys[node], incarnation, server=node.server)
            for key, reply in zip(keys, own, strict=True):
                if not isinstance(reply, Exception):
                    answers[key] = reply
                    del left[key]
                elif code_of(reply) in _ELSEWHERE:
                    moved = explain(reply, node.server)
                else:
                    failure = failure or explain(reply, node.server)
        if failure is not None:
            raise failure
        return moved


def _call(script: bytes) -> Packed:
    return packed("EVALSHA", hashlib.sha1(script, usedforsecurity=False).hexdigest())


def _step(target: Target, records: Records, ranks: Sequence[bytes], name: bytes, group: Sequence[int]) -> Packed:
    keys = list(dict.fromkeys(records.keys[i] for i in group))
    found = [packed(b"%d" % (1 + len(keys)), name), Packed(len(keys), keys, 0)]
    (only,) = pack_words([target.only])
    for i in group:
        commands = target.writes(records, [i])
        (count,) = pack_words([b"%d" % len(commands)])
        found.append(Packed(5, (records.fields[i], ranks[i], only, records.keys[i], count), 0))
        for command in commands:
            found += (packed(b"%d" % command.words), command)
    return joined(found)
