"""The two products that the sink writes to, and how the sink tells them apart (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Product:
    """What differs between requests to Elasticsearch and to OpenSearch."""

    name: str
    kind: str
    """The kind of sink."""
    expected: str
    """The versions that the sink works with, for errors."""
    media_type: str
    """The media type of JSON and of lines, with a ``%s``."""
    other: str
    """How to name a sink of the other product."""

    def headers(self, body: object) -> dict[str, str]:
        """Return the headers of a request.

        :param body: None, JSON, or the lines of a bulk request.
        """
        accepted = {"accept": self.media_type % "json"}
        if body is None:
            return accepted
        return {**accepted, "content-type": self.media_type % ("x-ndjson" if isinstance(body, bytes) else "json")}


ELASTICSEARCH = Product(
    "Elasticsearch",
    "elasticsearch",
    "Elasticsearch 8 or 9",
    # servers of 8.x and 9.x understand 8
    "application/vnd.elasticsearch+%s; compatible-with=8",
    "use a sink of the kind opensearch: OpenSearchSink in Python, an Airflow connection of the type opensearch, "
    "opensearch+https://host:9200 on the command line",
)
OPENSEARCH = Product(
    "OpenSearch",
    "opensearch",
    "OpenSearch 2 or 3",
    "application/%s",
    "use a sink of the kind elasticsearch: ElasticsearchSink in Python, an Airflow connection of the type "
    "elasticsearch, https://host:9200 on the command line",
)


def is_elasticsearch(headers: Mapping[str, str]) -> bool:
    """Return whether an answer comes from Elasticsearch 7.14 or newer, by its headers."""
    return headers.get("x-elastic-product") == "Elasticsearch"


def product_of(greeting: Any) -> tuple[Product | None, str]:
    """Return which product a server is, None if neither, and how an error calls it.

    :param greeting: the server's answer to ``GET /``.
    """
    version = greeting.get("version") if isinstance(greeting, dict) else None
    if not isinstance(version, dict) or not isinstance(version.get("number"), str):
        return None, "neither Elasticsearch nor OpenSearch"
    # a server in compatibility mode gives the number 7.10.2; its other fields still say what it is
    is_opensearch = version.get("distribution") == "opensearch" or "OpenSearch" in str(greeting.get("tagline"))
    product = OPENSEARCH if is_opensearch else ELASTICSEARCH
    return product, f"{product.name} {version['number'][:30]}"
