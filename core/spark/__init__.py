"""Spark: drains as jobs, DataFrames as entries, and the native bucket column; importing this needs no PySpark."""

from export_queue.core.spark.bucket import bucket_column
from export_queue.core.spark.compact_job import CompactArguments, CompactJob, compact_job, merge_by_tasks
from export_queue.core.spark.drain_job import DrainArguments, DrainJob, describe_drain, drain_job
from export_queue.core.spark.job import Job
from export_queue.core.spark.load_job import LoadArguments, check_load, describe_load
from export_queue.core.spark.load_report import LoadReport
from export_queue.core.spark.masters import check_answers, check_master, is_local, refuse_remote_sqlite
from export_queue.core.spark.problems import kept_problem
from export_queue.core.spark.submitter import Submitter
from export_queue.core.spark.verify_job import (
    VerifyArguments,
    VerifyJob,
    compare_by_tasks,
    describe_verify,
    verify_job,
)
from export_queue.core.spark.write import register_data_source, write_transactional

__all__ = [
    "CompactArguments",
    "CompactJob",
    "DrainArguments",
    "DrainJob",
    "Job",
    "LoadArguments",
    "LoadReport",
    "Submitter",
    "VerifyArguments",
    "VerifyJob",
    "bucket_column",
    "check_answers",
    "check_load",
    "check_master",
    "compact_job",
    "compare_by_tasks",
    "describe_drain",
    "describe_load",
    "describe_verify",
    "drain_job",
    "is_local",
    "kept_problem",
    "merge_by_tasks",
    "refuse_remote_sqlite",
    "register_data_source",
    "verify_job",
    "write_transactional",
]
