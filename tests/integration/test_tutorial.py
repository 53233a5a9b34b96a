"""The tutorial: every block, in order, in a fresh environment with the wheel, against servers as a user has them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.fixtures import private_or_skip
from tests.support.servers import RedisServer

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
INSTALL = "pip install '.[redis,elasticsearch]'"
SERVERS = "export REDIS_HOST=127.0.0.1 REDIS_PORT=6379 ELASTICSEARCH_URL=http://127.0.0.1:9200"
OPEN_TO_ALL = {"xpack.security.authc.anonymous.roles": "superuser"}


@pytest.fixture
def elasticsearch() -> Iterator[ElasticsearchServer]:
    yield from private_or_skip(lambda: ElasticsearchServer(OPEN_TO_ALL))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A server without a password, as a user's first one is."""
    from redis import Redis

    for server in private_or_skip(RedisServer):
        with Redis.from_url(server.url()) as client:
            client.config_set("requirepass", "")
        yield server


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_tutorial_has_the_lines_that_stand_for_another_place_here() -> None:
    install, _ = blocks("console")
    assert {INSTALL, SERVERS} <= {*install.splitlines()}


@pytest.mark.full("it installs an environment, and starts a server of Elasticsearch")
def test_the_tutorial_runs_from_the_install_to_the_last_command(
    wheel: Path, tmp_path: Path, elasticsearch: ElasticsearchServer, redis: RedisServer
) -> None:
    install, shell = blocks("console")
    install = install.replace(INSTALL, f"pip install --quiet '{wheel}[redis,elasticsearch]'")
    (tmp_path / "tutorial.py").write_text("\n\n".join(blocks("python")))
    install = install.replace(
        SERVERS, f"export REDIS_HOST={redis.host} REDIS_PORT={redis.port} ELASTICSEARCH_URL={elasticsearch.url}"
    )
    lines = ["set -eu", install, "python tutorial.py", shell.replace("export-queue", "echo; export-queue")]
    (tmp_path / "all.sh").write_text("\n".join(lines))

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    python = Path(sys.base_prefix) / "bin"
    environment["PATH"] = f"{python}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "all.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for reader in ("search", "cache", "reports"):
        assert re.search(
            rf"^airports/{reader} \[0, 1009\) → .*: 3 read = 3 acknowledged \+ 0 dead", done.stdout, re.MULTILINE
        )
    assert "EWR" in done.stdout
    assert "last commit" in done.stdout
