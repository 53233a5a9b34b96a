"""Spark: drains as jobs that any submitter can run, and the native bucket column; importing this needs no PySpark."""

from export_queue.core.spark.arguments import DrainArguments
from export_queue.core.spark.bucket import bucket_column
from export_queue.core.spark.drain_job import DrainJob, drain_job, refuse_remote_sqlite

__all__ = ["DrainArguments", "DrainJob", "bucket_column", "drain_job", "refuse_remote_sqlite"]
