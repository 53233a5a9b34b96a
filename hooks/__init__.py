"""Airflow hooks: stores and sinks by their Airflow connections."""

from export_queue.hooks.command_line import open_store_of_connection, sink_of_connection
from export_queue.hooks.described import Described, environment
from export_queue.hooks.elasticsearch import ElasticsearchSinkHook
from export_queue.hooks.export_queue import ExportQueueHook, open_store
from export_queue.hooks.opensearch import OpenSearchSinkHook
from export_queue.hooks.redis import RedisSinkHook
from export_queue.hooks.sink import SinkHook
from export_queue.hooks.sinks import resolve_sink, sink_hook
from export_queue.hooks.sql import SqlSinkHook

__all__ = [
    "Described",
    "ElasticsearchSinkHook",
    "ExportQueueHook",
    "OpenSearchSinkHook",
    "RedisSinkHook",
    "SinkHook",
    "SqlSinkHook",
    "environment",
    "open_store",
    "open_store_of_connection",
    "resolve_sink",
    "sink_hook",
    "sink_of_connection",
]
