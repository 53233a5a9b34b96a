"""What YARN and Kubernetes are given by Spark's own ``spark-submit``, with the commands of the pages about clusters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes import KubernetesApi
from tests.support.servers import free_port

from export_queue.core.spark import DrainArguments

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"YARN": "clusters-yarn.md", "Kubernetes": "clusters-kubernetes.md"}
"""Sections that have pages of their own."""
SECRETS = {"STORE_PASSWORD": "kept-secret-store", "REDIS_PASSWORD": "kept-secret-redis"}
YARN_SITE = """<configuration>
<property><name>yarn.resourcemanager.address</name><value>127.0.0.1:{port}</value></property>
<property><name>yarn.resourcemanager.connect.max-wait.ms</name><value>200</value></property>
<property><name>yarn.resourcemanager.connect.retry-interval.ms</name><value>100</value></property>
<property><name>ipc.client.connect.max.retries</name><value>0</value></property>
</configuration>
"""
SUBMIT = """#!/bin/sh
exec {spark_submit} --verbose --conf spark.kubernetes.submission.waitAppCompletion=false "$@" > {log} 2>&1
"""


def blocks(section: str) -> list[str]:
    """The Python blocks of a section of the page, or of the section's own page."""
    page = (DOCS / PAGES.get(section, "clusters.md")).read_text("utf-8")
    (found,) = re.findall(rf"^##? {section}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```python\n(.*?)^```", found, re.DOTALL | re.MULTILINE)


class Shell:
    """A machine from which jobs are submitted, with the names that the page's programs have defined so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.log = folder / "spark-submit.log"

    def run(self, block: str) -> None:
        exec(compile(block, "docs/clusters.md", "exec"), self.names)

    def told(self) -> str:
        """What spark-submit has printed."""
        text = self.log.read_text(errors="replace")
        assert not [value for value in SECRETS.values() if value in text]
        return text

    def settings(self) -> dict[str, str]:
        """Spark's configuration, as spark-submit hands it on."""
        (lines,) = re.findall(r"^Spark config:\n(.*?)^Classpath elements", self.told(), re.DOTALL | re.MULTILINE)
        return dict(line[1:-1].split(",", 1) for line in lines.splitlines())


@pytest.fixture
def shell(
    spark_home: Path, spark_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """The submitting machine, whose environment has passwords, and paths of its own Python."""
    found = Shell(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "spark-submit"
    program.write_text(SUBMIT.format(spark_submit=spark_home / "bin" / "spark-submit", log=found.log))
    program.chmod(0o755)
    (tmp_path / "environment.tar.gz").touch()
    (tmp_path / "yarn-site.xml").write_text(YARN_SITE.format(port=free_port()))
    shutil.copy(tmp_path / "yarn-site.xml", tmp_path / "core-site.xml")
    monkeypatch.chdir(tmp_path)
    variables = {**spark_environment, **SECRETS, "HADOOP_CONF_DIR": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    for name, value in (variables | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    exporter, drain = blocks("The first drain")
    (tmp_path / "my_exports.py").write_text(exporter)
    drain, submits = re.subn(r"^submit\(.*", "", drain, flags=re.MULTILINE)
    assert submits == 1
    found.run(drain)
    return found


@pytest.mark.full("a submission of Spark; what operators submit is looked at anyway")
def test_yarn_is_given_the_archive_the_shipped_library_and_the_python_of_the_nodes(shell: Shell) -> None:
    client, cluster = blocks("YARN")
    job = shell.names["job"]
    for mode, block in (("client", client), ("cluster", cluster)):
        with pytest.raises(subprocess.CalledProcessError):  # there is no cluster
            shell.run(block)
        settings = shell.settings()
        given = {name: value for name, value in settings.items() if name in job.conf}
        assert given == job.conf
        assert settings["spark.master"] == "yarn"
        assert settings["spark.submit.deployMode"] == mode
        assert settings["spark.yarn.dist.archives"] == f"file://{shell.folder}/environment.tar.gz#environment"
        shipped = [word.removeprefix("file://") for word in settings["spark.yarn.dist.pyFiles"].split(",")]
        assert shipped == [job.py_files, str(shell.folder / "my_exports.py")]
        assert settings["spark.pyspark.python"] == "./environment/bin/python"
    assert settings["spark.pyspark.driver.python"] == "./environment/bin/python"
    found = re.search(r"^Main class:\n(.*)\nArguments:\n(.*?)\nSpark config:", shell.told(), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert found[1] == "org.apache.spark.deploy.yarn.YarnClusterApplication"
    assert found[2].splitlines() == [
        *("--primary-py-file", f"file:{Path(job.application).resolve()}"),
        *("--class", "org.apache.spark.deploy.PythonRunner"),
        *("--arg", *job.arguments),
    ]
    assert "Connecting to ResourceManager" in shell.told(), "it came as far as YARN itself"


@pytest.mark.full("a submission of Spark; what operators submit is looked at anyway")
def test_kubernetes_is_given_a_driver_whose_secrets_are_references(shell: Shell) -> None:
    (block,) = blocks("Kubernetes")
    with KubernetesApi() as api:
        assert block.count("k8s://https://cluster.example:6443") == 1
        shell.run(block.replace("k8s://https://cluster.example:6443", api.master))
    job = shell.names["on_kubernetes"]
    (pod,) = [made.content for made in api.made if made.path == "/api/v1/namespaces/exports/pods"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example/exports:1"
    assert pod["spec"]["serviceAccountName"] == "spark"
    application = "local:///opt/export_queue/job_main.py"
    assert container["args"][-4:] == ["--class", "org.apache.spark.deploy.PythonRunner", application, *job.arguments]
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert variables["STORE_PASSWORD"] == {"secretKeyRef": {"name": "exports", "key": "store"}}
    assert variables["REDIS_PASSWORD"] == {"secretKeyRef": {"name": "exports", "key": "redis"}}
    assert (variables["PYSPARK_PYTHON"], variables["PYSPARK_DRIVER_PYTHON"]) == ("python3", "python3")
    maps = [made.content["data"] for made in api.made if "/configmaps/" in made.path]
    (properties,) = [data["spark.properties"] for data in maps if "spark.properties" in data]
    settings = dict(line.replace("\\:", ":").split("=", 1) for line in properties.splitlines() if "=" in line)
    assert settings["spark.submit.pyFiles"] == "local:///opt/app/my_exports.py"
    for name, key in (("STORE_PASSWORD", "store"), ("REDIS_PASSWORD", "redis")):
        assert settings[f"spark.kubernetes.executor.secretKeyRef.{name}"] == f"exports:{key}"
    assert all(settings[name].replace("\\=", "=") == value for name, value in job.conf.items())
    everything = f"{api.made} {[made.content for made in api.made]} {shell.told()}"
    assert not [value for value in SECRETS.values() if value in everything]
    described = DrainArguments.from_json(job.arguments[0])
    assert (described.store.secret, described.sink.secrets) == (
        "env:STORE_PASSWORD",
        {"password": "env:REDIS_PASSWORD"},
    )
    assert described.submitter is None


@pytest.mark.full("a submission of Spark; what operators submit is looked at anyway")
def test_an_image_without_the_library_gets_it_from_a_folder_that_pods_share(shell: Shell) -> None:
    shared = shell.folder / "shared"
    shared.mkdir()
    with KubernetesApi() as api:
        shell.names |= {"master": api.master, "shared": shared.as_uri()}
        shell.run(
            "submit(job, f'--master={master}', '--deploy-mode=cluster', "
            "'--conf=spark.kubernetes.container.image=registry.example/spark:1', "
            "f'--conf=spark.kubernetes.file.upload.path={shared}', f'--py-files={job.py_files},my_exports.py')"
        )
    job = shell.names["job"]
    (pod,) = [made.content for made in api.made if made.path.endswith("/pods")]
    application = Path(pod["spec"]["containers"][0]["args"][-2].removeprefix("file://"))
    assert application.parent.parent == shared
    assert application.read_bytes() == Path(job.application).read_bytes()
    assert {path.name for path in shared.rglob("*.*")} == {"job_main.py", Path(job.py_files).name, "my_exports.py"}
