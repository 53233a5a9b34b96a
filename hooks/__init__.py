"""Airflow hooks: the store and the sinks, on the connections that users have."""

from export_queue.hooks.export_queue import ExportQueueHook, StoreAddress
from export_queue.hooks.sinks import RedisSinkHook, SinkHook, SqlSinkHook, resolve_sink, sink_hook

__all__ = [
    "ExportQueueHook",
    "RedisSinkHook",
    "SinkHook",
    "SqlSinkHook",
    "StoreAddress",
    "resolve_sink",
    "sink_hook",
]
