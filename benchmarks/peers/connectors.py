"""Connectors of Spark, as their documentation has a DataFrame of keys and values written; run in Spark's driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import from_json, lit

FIELDS = "name string, version int, note string"


def spark_redis(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Write hashes by spark-redis, a thousand commands a pipeline."""
    options = {
        "host": to["host"],
        "port": to["port"],
        "auth": os.environ["PEERS_REDIS"],
        "table": "r",
        "key.column": "key",
        "max.pipeline.size": "1000",
    }
    frame.write.format("org.apache.spark.sql.redis").options(**options).mode("append").save()


def elasticsearch_spark(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Write documents by elasticsearch-spark, or have it delete them."""
    options = {
        "es.nodes": to["host"],
        "es.port": to["greeted_port"],
        "es.nodes.wan.only": "true",
        "es.net.http.auth.user": to["user"],
        "es.net.http.auth.pass": os.environ["PEERS_ELASTICSEARCH"],
        "es.resource": to["index"],
        "es.mapping.id": "key",
        "es.write.operation": "delete" if deletes else "index",
    }
    documents = frame.select("key")
    if not deletes:
        documents = frame.select("key", from_json("value", FIELDS).alias("of")).select("key", "of.*")
        options["es.mapping.exclude"] = "key,_version"
    if to.get("external"):
        documents = documents.withColumn("_version", lit(version))
        options |= {"es.mapping.version": "_version", "es.mapping.version.type": "external"}
    documents.write.format("org.elasticsearch.spark.sql").options(**options).mode("append").save()


def jdbc(frame: DataFrame, to: Mapping[str, Any], *, version: int, deletes: bool) -> None:
    """Append rows by Spark's JDBC writer, with its own batch size, or with batches that the driver rewrites."""
    rewritten = {"reWriteBatchedInserts": "true", "batchsize": "5000"} if to.get("rewritten") else {}
    options = {
        "url": f"jdbc:postgresql://{to['host']}:{to['port']}/{to['database']}",
        "driver": "org.postgresql.Driver",
        "user": to["user"],
        "password": os.environ["PEERS_POSTGRESQL"],
        "dbtable": to["table"],
        **rewritten,
    }
    rows = frame.selectExpr("key as id", "value as document")
    rows.write.format("jdbc").options(**options).mode("append").save()
