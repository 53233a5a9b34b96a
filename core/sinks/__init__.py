"""Sinks: the systems that serve copies of the committed data.

The sinks for Redis, Elasticsearch, OpenSearch and SQL are imported at their first use, so that a sink can be described
without their clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from export_queue.core.sinks.batch import Round, apply_batch, isolate, next_round, refuse_seqs
from export_queue.core.sinks.composite import CompositeSink
from export_queue.core.sinks.control import (
    ControlRecord,
    FloorRecord,
    check_owner,
    raise_floor,
    register_store,
    stale_rank,
)
from export_queue.core.sinks.datasets import Dataset, SqlNames, datasets_of, sql_names
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.guards import Claim, ClaimedSink, FencedSink
from export_queue.core.sinks.memory import MemorySink
from export_queue.core.sinks.naming import check_template, fill, first_collection
from export_queue.core.sinks.operations import (
    MAX_SEQ,
    Delete,
    Operations,
    OperationsBuilder,
    Put,
    collapse,
    document_bytes,
)
from export_queue.core.sinks.protocol import (
    ApplyResult,
    BoundSink,
    Capabilities,
    ContinuingSink,
    PointingSink,
    PreparableSink,
    ProbedSink,
    Rejection,
    RepairableSink,
    ScannableSink,
    SearchableSink,
    Sink,
    StoredRecords,
    SweepableSink,
    call_sink,
)
from export_queue.core.sinks.spec import SinkSpec, binding_of, is_kind, opened_sink

if TYPE_CHECKING:
    from export_queue.core.sinks.elasticsearch import ElasticsearchSink, OpenSearchSink
    from export_queue.core.sinks.redis import RedisSink
    from export_queue.core.sinks.sql import SqlSink

__all__ = [
    "MAX_SEQ",
    "ApplyResult",
    "BoundSink",
    "Capabilities",
    "Claim",
    "ClaimedSink",
    "CompositeSink",
    "ContinuingSink",
    "ControlRecord",
    "Dataset",
    "Delete",
    "ElasticsearchSink",
    "ErrorRow",
    "ErrorTable",
    "Fate",
    "FencedSink",
    "FloorRecord",
    "MemorySink",
    "OpenSearchSink",
    "Operations",
    "OperationsBuilder",
    "PointingSink",
    "PreparableSink",
    "ProbedSink",
    "Put",
    "RedisSink",
    "Rejection",
    "RepairableSink",
    "Round",
    "ScannableSink",
    "SearchableSink",
    "Sink",
    "SinkSpec",
    "SqlNames",
    "SqlSink",
    "StoredRecords",
    "SweepableSink",
    "apply_batch",
    "binding_of",
    "call_sink",
    "check_owner",
    "check_template",
    "collapse",
    "datasets_of",
    "document_bytes",
    "fill",
    "first_collection",
    "is_kind",
    "isolate",
    "next_round",
    "opened_sink",
    "raise_floor",
    "refuse_seqs",
    "register_store",
    "sql_names",
    "stale_rank",
]


_LAZY = {
    "ElasticsearchSink": "elasticsearch",
    "OpenSearchSink": "elasticsearch",
    "RedisSink": "redis",
    "SqlSink": "sql",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
