"""What follows from Spark's master: where executors run, and which masters cannot run a drain."""

from __future__ import annotations

from collections.abc import Mapping

from export_queue.core.errors import ConfigurationError
from export_queue.core.sinks import SinkSpec
from export_queue.core.store import StoreSpec

_YARN_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def is_local(master: str) -> bool:
    """Tell whether executors run on the driver's machine: they have its environment, and see its files."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def shares_process(master: str) -> bool:
    """Tell whether executors are the driver's own processes, with its packages."""
    return master == "local" or master.startswith("local[")


def check_master(
    master: str,
    *,
    deploy_mode: str | None = None,
    environment: Mapping[str, str] | None = None,
    has_spark_env: bool = False,
) -> None:
    """Refuse a master that cannot run a drain; in a moment, where Spark would take long to say so.

    :param master: Spark's master.
    :param deploy_mode: ``client`` or ``cluster``; None where it is not known.
    :param environment: variables of ``spark-submit``; None where they are not known.
    :param has_spark_env: whether Spark's own ``spark-env.sh`` may set more variables.
    :raises ConfigurationError: it cannot.
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
            hint="set one of them to the folder with yarn-site.xml where the job is submitted",
        )


def refuse_remote_sqlite(master: str, store: StoreSpec, sink: SinkSpec | None = None) -> None:
    """Refuse a store or a sink in a file where Spark's executors run on other machines.

    :param master: Spark's master, such as ``local[2]`` or ``spark://host:7077``.
    :raises ConfigurationError: they do.
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
