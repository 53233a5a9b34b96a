"""What Spark's master implies: where executors run, and whether it can run a job."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies

from export_queue.core.errors import ConfigurationError, SparkJobFailed
from export_queue.core.sinks import SinkSpec
from export_queue.core.store import StoreSpec

_YARN_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def is_local(master: str) -> bool:
    """Return whether executors run on the driver's machine, with its environment and files."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def shares_process(master: str) -> bool:
    """Return whether executors are processes of the driver, with its packages."""
    return master == "local" or master.startswith("local[")


def check_master(
    master: str,
    *,
    deploy_mode: str | None = None,
    environment: Mapping[str, str] | None = None,
    has_spark_env: bool = False,
) -> None:
    """Refuse a master that cannot run a job. Spark itself takes long to report it.

    :param master: Spark's master.
    :param deploy_mode: ``client`` or ``cluster``; None if it is not known.
    :param environment: variables of ``spark-submit``; None if they are not known.
    :param has_spark_env: whether Spark's own ``spark-env.sh`` may set more variables.
    :raises ConfigurationError: the master cannot run a job.
    """
    if master.startswith("sc://"):
        raise ConfigurationError(
            f"master {master} is Spark Connect, which runs no job of this kind",
            hint="name the cluster itself: local[2], spark://host:7077, yarn, k8s://https://host:6443",
        )
    if not (is_local(master) or master == "yarn" or master.startswith(("spark://", "k8s://"))):
        raise ConfigurationError(
            f"Spark knows no master {master!r}",
            hint="expected local[2], spark://host:7077, yarn, or k8s://https://host:6443",
        )
    if deploy_mode == "cluster" and (is_local(master) or master.startswith("spark://")):
        raise ConfigurationError(
            f"master {master} runs no Python driver in cluster mode",
            hint="use the deploy mode client, or YARN or Kubernetes",
        )
    may_be_set = environment is None or has_spark_env
    if master == "yarn" and not may_be_set and not any((environment or {}).get(name) for name in _YARN_VARIABLES):
        raise ConfigurationError(
            "master yarn needs the cluster's configuration, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            hint="where the job is submitted, set one of them to the folder with yarn-site.xml",
        )


def check_answers(master: str, *, seconds: float = 5.0) -> None:
    """Make sure that a master accepts connections. Spark itself fails after a minute, without naming the address.

    YARN, and Kubernetes behind a proxy, are not checked.

    :param master: Spark's master.
    :param seconds: time limit for each of its addresses.
    :raises SparkJobFailed: no address of the master answers.
    """
    silent = {}
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            return
        except OSError as error:
            silent[f"{host}:{port}"] = error.strerror or str(error)
    if silent:
        reasons = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
        raise SparkJobFailed(
            f"Spark's master {master} does not answer ({reasons})",
            hint="start it, or correct host and port in the connection of Spark",
        )


def _addresses(master: str) -> list[tuple[str, int]]:
    if master.startswith("spark://"):
        parts = [urlsplit(f"//{one}") for one in master.removeprefix("spark://").split(",")]
        return [(part.hostname, part.port) for part in parts if part.hostname and part.port]
    if master.startswith("k8s://") and not getproxies():
        address = master.removeprefix("k8s://")
        part = urlsplit(address if "://" in address else f"https://{address}")
        return [(part.hostname, part.port or (80 if part.scheme == "http" else 443))] if part.hostname else []
    return []


def refuse_remote_sqlite(master: str, store: StoreSpec, sink: SinkSpec | None = None) -> None:
    """Refuse a store or a sink in a file if Spark's executors run on other machines.

    :param master: Spark's master, such as ``local[2]`` or ``spark://host:7077``.
    :raises ConfigurationError: executors could not reach a file.
    """
    if is_local(master):
        return
    files = ["the store"] if store.is_sqlite else []
    files += [
        f"the sink {part.name!r}"
        for part in (sink.leaves() if sink is not None else ())
        if str(part.options.get("url", "")).startswith("sqlite")
    ]
    for what in files:
        raise ConfigurationError(
            f"{what} is a SQLite file, which Spark's executors on {master} cannot reach",
            hint="use PostgreSQL, or a master on this machine: local[N]",
        )
