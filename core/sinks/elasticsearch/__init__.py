"""Elasticsearch and OpenSearch as sinks: documents guarded by external versions, deleted ones kept as tombstones."""

from export_queue.core.sinks.elasticsearch.sink import ElasticsearchSink, OpenSearchSink

__all__ = ["ElasticsearchSink", "OpenSearchSink"]
