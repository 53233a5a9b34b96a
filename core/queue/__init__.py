"""Export queues: options, buckets and ranges, adding, reading, removing, dead letters."""

from export_queue.core.queue.add import QueueWriter
from export_queue.core.queue.altering import alter_queue
from export_queue.core.queue.buckets import Range, as_range, bucket, buckets_of, hash_of, join_ranges
from export_queue.core.queue.dead_letters import (
    ALL_DEAD_LETTERS,
    AuditRecord,
    DeadLetter,
    DeadLetterFilter,
    check_limit,
    count_dead_letters,
    dead_letter,
    dead_letter_audit,
    drop_dead_letters,
    list_dead_letters,
    requeue,
)
from export_queue.core.queue.options import (
    Queue,
    bind_sink,
    check_sink_name,
    configure_queue,
    find_queue,
    find_reader,
    list_queues,
)
from export_queue.core.queue.peek import QueuedEntry, hidden_seqs, peek
from export_queue.core.queue.read import (
    Backlog,
    Entries,
    Position,
    backlog,
    read_entries,
    remove_entries,
    remove_span,
    waiting_ranges,
)
from export_queue.core.queue.subscriptions import (
    missing_load,
    subscribe,
    subscriptions,
    unsubscribe,
    waive_first_load,
)
from export_queue.core.queue.watching import Sighting, look

__all__ = [
    "ALL_DEAD_LETTERS",
    "AuditRecord",
    "Backlog",
    "DeadLetter",
    "DeadLetterFilter",
    "Entries",
    "Position",
    "Queue",
    "QueueWriter",
    "QueuedEntry",
    "Range",
    "Sighting",
    "alter_queue",
    "as_range",
    "backlog",
    "bind_sink",
    "bucket",
    "buckets_of",
    "check_limit",
    "check_sink_name",
    "configure_queue",
    "count_dead_letters",
    "dead_letter",
    "dead_letter_audit",
    "drop_dead_letters",
    "find_queue",
    "find_reader",
    "hash_of",
    "hidden_seqs",
    "join_ranges",
    "list_dead_letters",
    "list_queues",
    "look",
    "missing_load",
    "peek",
    "read_entries",
    "remove_entries",
    "remove_span",
    "requeue",
    "subscribe",
    "subscriptions",
    "unsubscribe",
    "waiting_ranges",
    "waive_first_load",
]
