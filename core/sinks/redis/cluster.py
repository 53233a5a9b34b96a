"""A Redis Cluster: for each slot, a script compares ranks and writes records. All calls of a batch are sent together.

``WATCH`` guards one transaction of a connection, and a transaction in a cluster is limited to one slot. The keys of a
batch are spread over all slots, so that a cluster would need hundreds of transactions in sequence where a single server
needs one. A script declares all its keys: while a slot is moved, a node that has only some of them refuses the call
instead of comparing with some of the ranks.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from redis.crc import key_slot

from export_queue.core.errors import ExportQueueError, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection, Reply
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.layout import rank_texts
from export_queue.core.sinks.redis.nodes import Nodes, ask_each, exchange_all
from export_queue.core.sinks.redis.packing import Command, Packed, Sendable, joined, pack_words, packed, word_of
from export_queue.core.sinks.redis.servers import Incarnations, agree_on_shards, check_server, without_errors
from export_queue.core.sinks.redis.sweep import stale_text
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
"""Compares ranks and writes the records of a slot that are above its floor.

Keys: the hash of the ranks, then the keys of the records. Arguments for each record: field and text of the rank, the
only type that the key may have, the key, the number of commands; for each command the number of its words, and the
words. Returns the outcome for each record: 1 written, 0 stale, or the wrong type that its key has."""
REPAIR_SCRIPT = SCRIPT.replace(
    b"(not known or known < rank) and (not floor or floor < rank)", b"(not known or known <= rank)"
)
"""The same for records of an equal rank and below the floor, too."""
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
"""Raises the floor of a slot, and removes the tombstones at or below it from one page of a hash of ranks.

Key: the hash. Arguments: the highest stale rank, the cursor of the page. Returns the next cursor and the number of
tombstones removed."""
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
"""Maximum number of records of one call: a node serves no other client while a script runs."""
_SWEPT_AT_ONCE = 500
"""Number of hashes of which a page is swept together."""
log = logging.getLogger("export_queue.sweep")

_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN")
"""Error codes for slots that are being moved or were moved."""
MOVES = Retry(attempts=30, first_pause=0.01, longest_pause=0.1)
"""How calls are repeated while their slots are moved to another node."""


class _Moved(Exception):
    """A node no longer serves the slot of a call, or does not serve it yet."""

    def __init__(self, reason: ExportQueueError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Cluster:
    """A Redis Cluster; see :class:`~export_queue.core.sinks.redis.servers.Servers`.

    :param seed: connection to the node that the sink's options name.
    :param connect: makes a connection to a node from its host and port.
    :param target: what a record is.
    :param incarnations: the incarnations that the sink has seen.
    :param wanted_shards: required number of hashes of ranks; None for any.
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

    def ask(self, key: bytes, *commands: Command) -> list[Reply]:
        return self._nodes.at(key).ask_all(*commands)

    def keys(self, name: bytes) -> Mapping[Connection, bytes]:
        return {node: layout.key_in_slot(name, slot) for node, slot in self._nodes.primaries().items()}

    def prove(self, control_key: bytes, *, readmit: bool) -> None:
        if not readmit:
            (noted,) = self.ask(control_key, ("HGET", control_key, "incarnations"))
            self._incarnations.expect(noted)
        for node, key, answer in self._ask_primaries(lambda key: (self._incarnations.look(key),)):
            self._incarnations.check(key, answer, server=node.server)

    def show(self, fence: int) -> Command:
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

        :param commands: returns the commands of a primary, given the key of the hash that holds its incarnation.
        :returns: the node, that key, and the reply to the last command.
        """
        keys = self.keys(layout.CONTROL)
        asked = {node: [self._incarnations.leave(key), *commands(key)] for node, key in keys.items()}
        for node, answer in ask_each(asked).items():
            yield node, keys[node], answer

    def write(self, operations: Operations, *, repairs: bool = False) -> ApplyResult:
        """Write operations on distinct records.

        :param repairs: whether to write records of an equal rank and below the floor, too.
        :raises SinkLostData: a node has lost data; no part of the batch counts as written.
        :raises SinkUnavailable: a node does not answer, or slots were moved for too long; parts may be written.
        """
        records, ranks = self._target.locate(operations), pack_words(rank_texts(operations.ranks()))
        groups = layout.group_by_slot(list(map(word_of, records.keys)), self._target.hashes + b"{%b}")
        written, rejected = 0, []
        for start in range(0, max(map(len, groups.values())), _RECORDS_AT_ONCE):
            parts = {name: group[start : start + _RECORDS_AT_ONCE] for name, group in groups.items()}
            steps = {name: _step(self._target, records, ranks, name, part) for name, part in parts.items() if part}
            for name, outcomes in self._call(REPAIR_SCRIPT if repairs else SCRIPT, steps).items():
                for i, outcome in zip(parts[name], outcomes, strict=True):
                    if isinstance(outcome, bytes):
                        rejected.append(wrong_type(i, records.keys[i], outcome))
                    else:
                        written += outcome
        return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))

    def read(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        by_node: dict[Connection, list[int]] = {}
        for i, (key, _) in enumerate(commands):
            by_node.setdefault(self._nodes.at(key), []).append(i)
        replies: list[Reply] = [None] * len(commands)
        found = exchange_all({node: [commands[i][1] for i in own] for node, own in by_node.items()})
        for node, own in by_node.items():
            if any(isinstance(reply, Exception) and code_of(reply) in _ELSEWHERE for reply in found[node]):
                self._nodes.forget()  # a cursor of one node has no meaning for another one: the caller starts again
            for i, reply in zip(own, without_errors(found[node], node.server), strict=True):
                replies[i] = reply
        return replies

    def rank_hashes(self, prefix: bytes) -> Sequence[bytes]:
        return [prefix + b"{%b}" % tag for tag in layout.slot_tags()]

    def hashes_of(self, prefix: bytes, ids: Sequence[bytes], keys: Sequence[bytes]) -> Sequence[bytes]:
        tags = layout.slot_tags()
        return [prefix + b"{%b}" % tags[key_slot(key)] for key in keys]

    def sweep(self, floor: int) -> int:
        """Raise the floor of all slots, and remove the tombstones at or below it.

        The floor of a slot is a field of the hash of its ranks. So the script that writes a batch compares it in the
        same step, and the floor moves to another node together with the ranks.
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

    def close(self) -> None:
        self._nodes.close()

    def _call(self, script: bytes, calls: Mapping[bytes, Packed]) -> dict[bytes, Any]:
        """Call a script many times, each time at the node that serves its key; follow slots that are moved.

        :param calls: number of keys, keys and arguments of each call, by one of its keys.
        :returns: the answers, by the same keys.
        """
        pending, answers = dict(calls), dict[bytes, Any]()
        try:
            MOVES.call(
                lambda: self._call_pending(script, pending, answers),
                worth_repeating=lambda error: isinstance(error, _Moved),
            )
        except _Moved as error:
            raise SinkUnavailable(f"{error}, {MOVES.attempts} times", hint=error.reason.hint) from None
        return answers

    def _call_pending(self, script: bytes, pending: dict[bytes, Packed], answers: dict[bytes, Any]) -> None:
        """Make the pending calls, and move those that are answered to the answers.

        :raises _Moved: a call is still pending, because its slot was moved.
        :raises ExportQueueError: a call failed for another reason.
        """
        # the script is sent before the calls: a server that was restarted, or has just become primary, lacks it
        load: Command = ("SCRIPT", "LOAD", script)
        call = _call(script)
        by_node: dict[Connection, list[bytes]] = {}
        for key in pending:
            by_node.setdefault(self._nodes.at(key), []).append(key)
        control_keys = self.keys(layout.CONTROL)
        commands: dict[Connection, list[Sendable]] = {}
        for node, keys in by_node.items():
            control = control_keys[node]
            looks = (self._incarnations.leave(control), self._incarnations.look(control))
            commands[node] = [*looks, load, *(joined([call, pending[key]]) for key in keys)]
        replies = exchange_all(commands)
        moved: ExportQueueError | None = None
        failure: ExportQueueError | None = None
        for node, keys in by_node.items():
            _, incarnation, _, *own = replies[node]
            if not isinstance(incarnation, Exception):  # an error: its slot was moved just now
                self._incarnations.check(control_keys[node], incarnation, server=node.server)
            for key, reply in zip(keys, own, strict=True):
                if not isinstance(reply, Exception):
                    answers[key] = reply
                    del pending[key]
                elif code_of(reply) in _ELSEWHERE:
                    moved = explain(reply, node.server)
                else:
                    failure = failure or explain(reply, node.server)
        if failure is not None:
            raise failure
        if moved is not None:
            self._nodes.forget()
            raise _Moved(moved)


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
