"""Elasticsearch as a sink: documents guarded by external versions, deleted ones kept as tombstones."""

from export_queue.core.sinks.elasticsearch.sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]
