"""Sending secrets that only the driver can look up to executors on other machines.

Normally references are sent, and executors look the secrets up. In client mode an ``env:`` reference names a variable
of ``spark-submit``, which executors of a cluster do not have. Its value may be sent inside the closure of the tasks if
the cluster authenticates its members and encrypts its connections. The closure is kept small, because PySpark writes a
large one to a file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from export_queue.core.errors import ConfigurationError
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.masters import is_local
from export_queue.core.store import StoreSpec

_ENV = "env:"
_OF_CONNECTIONS = ("XQ_STORE_PASSWORD", "XQ_SINK_")
"""Prefixes of the variables in which Airflow's operators give the driver the passwords of connections."""
_MOST_BYTES = 1 << 17
"""Far below one megabyte, above which PySpark writes a closure to a file."""


@dataclass(frozen=True, slots=True)
class CarriedSecrets:
    """Variables of the driver's environment; never printed.

    :param variables: values by name.
    """

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def unpack(self) -> None:
        """Set the variables in this process unless they exist, so that it can look up the references."""
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)


def references(store: StoreSpec, sink: SinkSpec | None = None) -> list[str]:
    """List the references to secrets that a task looks up."""
    leaves = () if sink is None else sink.leaves()
    found = {text for part in leaves for text in part.secrets.values()}
    return sorted(found | ({store.secret} if store.secret else set()))


def carried_secrets(conf: Mapping[str, str], wanted: Sequence[str], lacking: Collection[str]) -> CarriedSecrets:
    """Collect the driver's variables that executors need; refuse if they need one and connections are not protected.

    :param conf: Spark's configuration, by name.
    :param wanted: references that tasks look up.
    :param lacking: the references that some executor cannot look up.
    :raises ConfigurationError: an executor lacks a secret that must not, or cannot, be sent.
    """
    variables = {name: os.environ[name] for name in _names(wanted) if name in os.environ}
    elsewhere = sorted(set(lacking) - {f"{_ENV}{name}" for name in variables})
    if elsewhere:
        raise ConfigurationError(
            f"Spark's executors cannot look up {', '.join(elsewhere)}",
            hint="use references that every executor can look up; a file needs mode 0600",
        )
    if _is_protected(conf):
        if sum(map(len, variables.values())) > _MOST_BYTES:
            raise ConfigurationError("the secrets are too large to be sent to executors", hint="give files: file:/PATH")
        return CarriedSecrets(variables)  # executors that start later get them too
    if lacking:
        raise _in_clear(lacking)
    return CarriedSecrets()


def refuse_unsendable(conf: Mapping[str, str], wanted: Sequence[str]) -> None:
    """Refuse the passwords of Airflow's connections, before an executor starts, if executors cannot get them.

    An executor tries the other references first: its machine may have a variable of that name.

    :param conf: Spark's configuration, by name.
    :param wanted: references that tasks look up.
    :raises ConfigurationError: the cluster's connections are not protected.
    """
    ours = [f"{_ENV}{name}" for name in _names(wanted) if name.startswith(_OF_CONNECTIONS) and name in os.environ]
    lacking = [text for text in ours if f"spark.executorEnv.{text.removeprefix(_ENV)}" not in conf]
    if lacking and not is_local(conf.get("spark.master", "")) and not _is_protected(conf):
        raise _in_clear(lacking)


def _in_clear(lacking: Collection[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{', '.join(sorted(lacking))} can be looked up only on the driver's machine, and this cluster would send "
        "passwords to its executors in clear",
        hint="set spark.authenticate=true and spark.network.crypto.enabled=true for the whole cluster, or give "
        "references that executors can look up: file:/PATH, module:callable",
    )


def _names(wanted: Sequence[str]) -> list[str]:
    return [text.removeprefix(_ENV) for text in wanted if text.startswith(_ENV)]


def _is_protected(conf: Mapping[str, str]) -> bool:
    encrypts = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    return _is_on(conf, "spark.authenticate") and any(_is_on(conf, name) for name in encrypts)


def _is_on(conf: Mapping[str, str], name: str) -> bool:
    return str(conf.get(name, "false")).strip().lower() == "true"
