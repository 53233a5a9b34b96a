"""Connecting a driver to Spark; modules and secrets that tasks lack are reported before a task runs."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import SparkContext

from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.carried_secrets import CarriedSecrets, carried_secrets, references, refuse_unsendable
from export_queue.core.spark.engine import ask_executors, check_driver
from export_queue.core.spark.masters import is_local, refuse_remote_sqlite
from export_queue.core.spark.start import start_deadline, start_spark, submitted_settings
from export_queue.core.store import StoreSpec

_FORKABLE = {"psycopg", "redis"}
_CLIENTS = {"elasticsearch": "elastic_transport", "opensearch": "elastic_transport", "redis": "redis"}
"""By kind of sink: the module of its client."""


def connect(
    name: str, *, store: StoreSpec, sink: SinkSpec | None = None, modules: Sequence[str], seconds: float
) -> tuple[SparkContext, CarriedSecrets]:
    """Connect to the Spark that this program was submitted to.

    :param name: name of the application.
    :param store: what tasks open.
    :param sink: the sink that tasks open.
    :param modules: what tasks import besides the driver of the store.
    :param seconds: time that Spark may take to start and to find an executor.
    :returns: the connection, and the secrets that executors on other machines cannot look up.
    :raises ConfigurationError: this process or an executor lacks a module, or an executor lacks a secret.
    :raises SparkJobFailed: Spark did not start in time.
    """
    if not store.is_sqlite:
        modules = [*modules, "psycopg"]
    check_driver(modules)
    wanted = references(store, sink)
    with start_deadline(seconds):
        refuse_unsendable(submitted_settings(), wanted)
        context = start_spark(name, preloaded=_preloaded(modules))
        refuse_remote_sqlite(context.master, store, sink)
        return context, secrets_for(context, modules, wanted)


def secrets_for(context: SparkContext, modules: Sequence[str], wanted: Sequence[str]) -> CarriedSecrets:
    """Make sure that executors have what tasks need, and collect the secrets that only the driver can look up.

    :param modules: what tasks import.
    :param wanted: references that tasks look up.
    :raises ConfigurationError: executors lack a module or a secret.
    """
    lacking = ask_executors(context, modules, wanted)
    if is_local(context.master):
        return CarriedSecrets()  # executors have the driver's environment
    return carried_secrets(dict(context.getConf().getAll()), wanted, lacking)


def _preloaded(modules: Sequence[str]) -> list[str]:
    """Select the modules that may be imported before workers are forked. A user's module may start threads."""
    return ["pyspark.worker", *(name for name in modules if name.startswith("export_queue.") or name in _FORKABLE)]


def modules_of(sink: SinkSpec, exporter: object | None) -> list[str]:
    """Return the modules that tasks import for a sink and an exporter."""
    modules = _sink_modules(sink)
    if isinstance(exporter, str):
        modules.append(exporter.partition(":")[0])
    return modules


def _sink_modules(sink: SinkSpec) -> list[str]:
    if sink.leaves() != (sink,):
        return [module for part in sink.leaves() for module in _sink_modules(part)]
    if ":" in sink.kind:
        return [sink.kind.partition(":")[0]]
    if sink.kind == "sql" and str(sink.options.get("url", "")).startswith("postgresql"):
        return ["psycopg"]
    return [_CLIENTS[sink.kind]] if sink.kind in _CLIENTS else []
