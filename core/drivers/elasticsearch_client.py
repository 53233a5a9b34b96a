"""Options of the client of Elasticsearch, of which it would drop some in silence."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from export_queue.core.drivers.tables import ELASTICSEARCH
from export_queue.core.errors import SinkConfigurationError


def client_arguments(given: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """Read options of the client.

    :param hosts: URLs of the cluster's nodes.
    :raises SinkConfigurationError: an option is unknown or has a wrong value, or the client would drop a demand.
    """
    options = ELASTICSEARCH.read(given, where="client_options", error=SinkConfigurationError)
    for host in hosts:
        if "?" in host or "#" in host or "@" in host:
            raise SinkConfigurationError("hosts: expected https://host:port, without a user and options")
    tls = options.keys() - {"http_compress"}
    if tls and not all(host.lower().startswith("https://") for host in hosts):
        raise SinkConfigurationError(
            f"client_options: {', '.join(sorted(tls))} with a host that is spoken to without TLS",
            hint="begin hosts with https:// (in a connection of Airflow: the field Schema)",
        )
    unkept: set[str] = set()
    if "ssl_assert_fingerprint" in options:  # the client compares nothing else then
        unkept = {"ca_certs", "ssl_assert_hostname"} | ({"verify_certs"} if options.get("verify_certs") else set())
    elif options.get("verify_certs") is False:
        unkept = {"ca_certs", "ssl_assert_hostname"}
    if dropped := sorted(unkept & options.keys()):
        cause = "ssl_assert_fingerprint" if "ssl_assert_fingerprint" in options else "verify_certs false"
        raise SinkConfigurationError(f"client_options: with {cause} the client ignores {', '.join(dropped)}")
    if ("client_key" in options) > ("client_cert" in options):
        raise SinkConfigurationError("client_options: client_key goes with client_cert")
    return options


def basic_auth(username: str, password: str) -> str:
    """Write user and password as the client's argument ``basic_auth``, which it would encode in ASCII."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()
