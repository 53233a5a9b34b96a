"""How records are written in a Redis Cluster: a script a slot, many of them at once.

``WATCH`` guards one transaction of a connection, and a transaction of a cluster stays within one slot. Users' keys lie
all over the slots; so where a single server gets one transaction for a batch, a cluster would get hundreds, one after
the other. A script compares and writes in one step, and all of a batch's scripts travel together. It knows all
its keys: while a slot is moved, a node that has only some of them refuses instead of comparing with half of the ranks.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from export_queue.core.errors import ExportQueueError, SinkUnavailable
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult
from export_queue.core.sinks.redis import layout
from export_queue.core.sinks.redis.connection import Connection
from export_queue.core.sinks.redis.errors import code_of, explain
from export_queue.core.sinks.redis.layout import Command
from export_queue.core.sinks.redis.marks import Marks
from export_queue.core.sinks.redis.nodes import Nodes, exchange_all
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

Keys: the hash of their ranks, then theirs. Arguments, record by record: field and text of the rank, the only type that the
key may have, the key, number of commands; of each command the number of its words, and they. Returns a record's outcome:
1 written, 0 stale, or the wrong type that its key has."""
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
_SWEPT_AT_ONCE = 500
"""Hashes of which a page is swept in one go."""
log = logging.getLogger("export_queue.sweep")

_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN")
"""Codes of slots that are being moved, or were."""
_TRIES = 30
_PAUSE_SECONDS = 0.1


def check_marks(nodes: Nodes, marks: Marks) -> None:
    """Compare the marks of all primaries with those seen before, and leave one where there is none.

    :raises SinkLostData: a node has lost what it had.
    """
    keys = _mark_keys(nodes)
    replies = exchange_all({node: [marks.leave(key), marks.look(key)] for node, key in keys.items()})
    for node, answers in replies.items():
        for answer in answers:
            if isinstance(answer, Exception):
                raise explain(answer, node.server) from answer
        marks.check(keys[node], answers[-1], server=node.server)


def _mark_keys(nodes: Nodes) -> dict[Connection, bytes]:
    return {node: layout.key_in_slot(layout.CONTROL, slot) for node, slot in nodes.primaries().items()}


def write_by_slot(nodes: Nodes, target: Target, marks: Marks, operations: Operations) -> ApplyResult:
    """Write operations on distinct records.

    :raises SinkLostData: a node has lost what it had; nothing of the batch counts.
    :raises SinkUnavailable: a node is away, or slots were moved for longer than we wait; parts may be written.
    """
    records = target.place(operations, None)
    steps = {name: _step(target, records, name, group) for name, group in records.shards.items()}
    found = _call(nodes, marks, SCRIPT, steps)
    written, rejected = 0, []
    for name, group in records.shards.items():
        for i, outcome in zip(group, found[name], strict=True):
            if isinstance(outcome, bytes):
                rejected.append(wrong_type(i, records.keys[i], outcome))
            else:
                written += outcome
    return ApplyResult(written, len(operations) - written - len(rejected), tuple(rejected))


def sweep_slots(nodes: Nodes, marks: Marks, stale: bytes, *, sink: str) -> int:
    """Raise the floor of all slots and remove the tombstones below it.

    The floor of a slot lies in the hash of its ranks, where each batch looks at it in the step in which it writes, and
    with which it moves to another node.

    :param stale: the highest stale rank, written as ranks are; empty if none.
    :returns: how many tombstones were removed.
    """
    names = layout.rank_hashes_of_slots() if stale else []
    removed = 0
    for start in range(0, len(names), _SWEPT_AT_ONCE):
        cursors = dict.fromkeys(names[start : start + _SWEPT_AT_ONCE], b"0")
        while cursors:
            pages = {name: (b"1", name, stale, cursor) for name, cursor in cursors.items()}
            answers = _call(nodes, marks, SWEEP_SCRIPT, pages)
            removed += sum(count for _, count in answers.values())
            cursors = {name: cursor for name, (cursor, _) in answers.items() if cursor != b"0"}
        if start % (20 * _SWEPT_AT_ONCE) == 19 * _SWEPT_AT_ONCE:
            log.info("%s: %d of %d hashes swept, %d tombstones removed", sink, start, len(names), removed)
    return removed


def _step(target: Target, records: Records, name: bytes, group: Sequence[int]) -> Command:
    keys = dict.fromkeys(records.keys[i] for i in group)
    arguments: list[bytes | str] = []
    for i in group:
        commands = target.writes(records, [i])
        arguments += (records.fields[i], records.ranks[i], target.only, records.keys[i], b"%d" % len(commands))
        for command in commands:
            arguments += (b"%d" % len(command), *command)
    return (b"%d" % (1 + len(keys)), name, *keys, *arguments)


def _call(nodes: Nodes, marks: Marks, script: bytes, calls: Mapping[bytes, Command]) -> dict[bytes, Any]:
    """Call a script many times, each at the node that serves its key, again where that is another one by now.

    :param calls: number of keys, keys and arguments of each call, by one of its keys.
    :returns: the answers.
    """
    # The script goes before the calls: a server that was restarted, or took over, has none.
    load: Command = ("SCRIPT", "LOAD", script)
    call = ("EVALSHA", hashlib.sha1(script, usedforsecurity=False).hexdigest())
    left, answers = dict(calls), dict[bytes, Any]()
    for attempt in range(_TRIES):
        by_node: dict[Connection, list[bytes]] = {}
        for key in left:
            by_node.setdefault(nodes.at(key), []).append(key)
        elsewhere: list[ExportQueueError] = []
        failures: list[ExportQueueError] = []
        mark_keys = _mark_keys(nodes)
        commands: dict[Connection, list[Command]] = {}
        for node, keys in by_node.items():
            mark = mark_keys[node]
            commands[node] = [marks.leave(mark), marks.look(mark), load, *((*call, *left[key]) for key in keys)]
        try:
            replies = exchange_all(commands)
        except Exception:
            nodes.forget()
            raise
        for node, keys in by_node.items():
            _, found, _, *own = replies[node]
            if not isinstance(found, Exception):  # else its slot has just moved: the next look finds another
                marks.check(mark_keys[node], found, server=node.server)
            for key, reply in zip(keys, own, strict=True):
                if not isinstance(reply, Exception):
                    answers[key] = reply
                    del left[key]
                    continue
                (elsewhere if code_of(reply) in _ELSEWHERE else failures).append(explain(reply, node.server))
        if failures:
            nodes.forget()
            raise failures[0]
        if not elsewhere:
            return answers
        nodes.forget()
        if attempt:  # the first time at once: the slot was moved before, and the next look finds it
            time.sleep(random.uniform(0, 2 * _PAUSE_SECONDS))
    raise SinkUnavailable(f"{elsewhere[-1].message}, {_TRIES} times", hint=elsewhere[-1].hint)
