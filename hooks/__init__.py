"""Airflow hooks: the store and the sinks, on the connections that users have."""

from export_queue.hooks.export_queue import ExportQueueHook, StoreAddress
from export_queue.hooks.sinks import (
    ElasticsearchSinkHook,
    RedisSinkHook,
    SinkHook,
    SqlSinkHook,
    resolve_sink,
    sink_hook,
)

__all__ = [
    "ElasticsearchSinkHook",
    "ExportQueueHook",
    "RedisSinkHook",
    "SinkHook",
    "SqlSinkHook",
    "StoreAddress",
    "resolve_sink",
    "sink_hook",
]
