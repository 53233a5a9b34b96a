"""The Redis sink over TLS to a cluster; one server is in ``test_connection_rows.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.certificates import make_certificate
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_records import admit, puts
from tests.support.servers import HOST, RedisServer, free_port

from export_queue import RedisSink


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the servers' address that vouches for itself; its key lies beside it."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def settings(certificate: Path) -> Mapping[str, str]:
    return {
        "tls-port": str(free_port()),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(certificate.with_suffix(".key")),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }


@pytest.fixture
def cluster(certificate: Path) -> Iterator[RedisCluster]:
    try:
        made = RedisCluster(settings={"tls-cluster": "yes", "tls-replication": "yes"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    for node in made.nodes:
        node.settings |= settings(certificate)
    with made:
        yield made


def over_tls(server: RedisServer, **options: Any) -> RedisSink:
    return RedisSink(HOST, int(server.settings["tls-port"]), password=server.password, ssl=True, ssl_options=options)


def test_all_nodes_of_a_cluster_are_reached_over_tls(cluster, certificate):
    ids = [b"%d" % n for n in range(200)]
    for node in cluster.nodes:  # from now on nobody is heard without TLS
        cluster.ask(node, "CONFIG", "SET", "port", "0")
    with closing(over_tls(cluster.nodes[0], ssl_ca_certs=str(certificate))) as sink:
        assert admit(sink).apply(puts(*ids)).written == 200
    with redis.RedisCluster(
        HOST,
        int(cluster.nodes[0].settings["tls-port"]),
        password=cluster.password,
        ssl=True,
        ssl_ca_certs=str(certificate),
    ) as reader:
        assert set(reader.mget_nonatomic([f"orders:{n}" for n in range(200)])) == {b"x"}
