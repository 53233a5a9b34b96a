"""What follows from the machines that Spark's master leads to."""

from __future__ import annotations

from export_queue.core.errors import ConfigurationError
from export_queue.core.sinks import SinkSpec
from export_queue.core.store import StoreSpec


def shares_environment(master: str) -> bool:
    """Tell whether executors are the driver's own processes, with its packages and its environment."""
    return master == "local" or master.startswith("local[")


def refuse_remote_sqlite(master: str, store: StoreSpec, sink: SinkSpec) -> None:
    """Refuse a store or a sink in a file where Spark's executors run on other machines.

    :param master: Spark's master, such as ``local[2]`` or ``spark://host:7077``.
    :raises ConfigurationError: they do.
    """
    if master.startswith("local"):
        return
    files = ["the store"] if store.is_sqlite else []
    files += [
        f"the sink {part.name!r}" for part in sink.leaves() if str(part.options.get("url", "")).startswith("sqlite")
    ]
    for what in files:
        raise ConfigurationError(
            f"{what} is a SQLite file, which Spark's executors on {master} cannot reach",
            hint="use PostgreSQL, or a master on this machine: local[N]",
        )
