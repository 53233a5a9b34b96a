"""Secrets that only the driver can look up, on their way to executors of another machine.

References travel, and executors follow them by themselves. An ``env:`` reference of a client mode leads to the
environment of ``spark-submit``, which executors of a cluster do not have; its value travels inside the closure of the
tasks, which is in no configuration, command line or plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.masters import shares_environment
from export_queue.core.store import StoreSpec

_ENV = "env:"


@dataclass(frozen=True, slots=True)
class CarriedSecrets:
    """Variables of the driver's environment; never printed.

    :param variables: values by name.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def unpack(self) -> None:
        """Let this process follow the references; a variable that it has of its own stays."""
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)


def carried_secrets(master: str, store: StoreSpec, sink: SinkSpec) -> CarriedSecrets:
    """Collect what executors need of the driver's environment; nothing where they share it.

    :param master: Spark's master.
    :param store: the store that tasks open.
    :param sink: the sink that tasks open.
    """
    if shares_environment(master):
        return CarriedSecrets()
    references = [store.secret or "", *(text for part in sink.leaves() for text in part.secrets.values())]
    names = {text.removeprefix(_ENV) for text in references if text.startswith(_ENV)}
    return CarriedSecrets({name: os.environ[name] for name in sorted(names) if name in os.environ})
