"""How the operators that run on Spark start it: which Spark, which Python, which secrets."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from export_queue.core.arguments import seconds, text
from export_queue.core.errors import ConfigurationError, InvalidArgument
from export_queue.core.references import is_reference
from export_queue.hooks import Described, environment
from export_queue.hooks.connections import find_connection
from export_queue.hooks.rendered import Reader, name_or, optional, settings, untouched
from export_queue.links import SparkUiLink
from export_queue.operators.detached_driver import DriverOutput, start_detached
from export_queue.operators.spark_home import configured_spark_home, find_java, find_spark
from export_queue.operators.stopping import StoppableTask

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import BaseOperatorLink, Context

    from export_queue.core.client import Store
    from export_queue.core.sinks import SinkSpec
    from export_queue.core.spark import Job, Submitter
    from export_queue.core.store import StoreSpec

_PYTHON_SETTINGS = (
    "spark.pyspark.python",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON",
    "spark.kubernetes.driverEnv.PYSPARK_PYTHON",
)
_ACCEPTED_IS_ENOUGH = {
    "spark.yarn.submit.waitAppCompletion": "false",
    "spark.kubernetes.submission.waitAppCompletion": "false",
}
_SPARK_EXAMPLE = {"conn_type": "spark", "host": "local[2]"}
_SPARK_UI = re.compile(r"\s*(?:Spark UI|tracking URL): (https?://[^\s/?#@]+(?:[/?#]\S*)?)\s*")
"""A line of the driver (``core.spark.start``), or of YARN's report on an application. A user in it is refused."""


class SparkSubmission(StoppableTask, SparkSubmitOperator):
    """A task that submits one of this library's jobs.

    The driver receives passwords through the environment of ``spark-submit``. They are in no argument, configuration,
    rendered field or log. Cluster modes do not pass the environment on: give references to what the cluster mounts.

    :param spark_conn_id: connection of Spark, of the type ``spark``, whose host is the master, such as ``local[2]`` or
        ``spark://host:7077``. (templated)
    :param spark_home: folder of a virtual environment or of a Spark distribution with ``bin/spark-submit``; by default
        the option ``spark_home`` of the configuration section ``export_queue``, then the PATH. (templated)
    :param spark_python: the Python that has PySpark; by default ``bin/python`` next to ``spark-submit``. With a master
        ``spark://…`` executors use it too; with YARN and Kubernetes they use Spark's own setting, which is checked. In
        cluster modes it is the Python of driver and executors; by default the one that Spark's settings or
        ``PYSPARK_PYTHON`` name, or ``python3``. (templated)
    :param start_timeout: seconds that Spark may take to start and to find an executor; raise it if the cluster's
        queue is long. (templated)
    :param store_secret: reference to the store's password where Spark runs: ``env:NAME``, ``file:/PATH`` or
        ``module:callable``.
    :param kwargs: further arguments of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        **dict.fromkeys(SparkSubmitOperator.template_fields, untouched),
        "conf": settings,
        "env_vars": settings,
        "name": name_or("export-queue"),
        "spark_conn_id": name_or("spark_default"),
        "spark_home": text,
        "spark_python": text,
        "start_timeout": optional(seconds, default=600.0),
    }
    template_fields: Collection[str] = tuple(readers)  # type: ignore[assignment]
    operator_extra_links: Collection[BaseOperatorLink] = (SparkUiLink(),)

    def __init__(
        self,
        *,
        spark_conn_id: str = "spark_default",
        spark_home: str | None = None,
        spark_python: str | None = None,
        start_timeout: float | str = 600.0,
        store_secret: str | None = None,
        **kwargs: Any,
    ) -> None:
        if "conn_id" in kwargs:
            raise InvalidArgument("conn_id: the connection of Spark is named by spark_conn_id")
        super().__init__(conn_id=spark_conn_id, **kwargs)
        self.spark_conn_id = spark_conn_id
        self.spark_home = spark_home
        self.spark_python = spark_python
        self.start_timeout: Any = start_timeout
        self.store_secret = store_secret
        check_references({"store_secret": store_secret})

    _deploys_to_cluster = False
    """Whether the driver runs in the cluster, as the Spark connection says."""
    _output: DriverOutput | None = None
    """Where a submission that outlives the task writes its output; None if the task waits for it."""
    _detached: subprocess.Popen[Any] | None = None
    """The ``spark-submit`` of such a submission."""
    _instance: Any = None
    """The task instance that submits."""
    spark_ui: str | None = None
    """Address of the UI of the last submission."""

    def on_kill(self) -> None:
        """Kill the submission and take its locks away, so that a driver that survives changes nothing."""
        self._is_killed = True
        self.take_locks_away()  # at once: killing a job on a cluster may take longer than Airflow allows
        if self._detached is not None:
            self._detached.kill()
        if self._hook is not None:
            try:
                SparkSubmitOperator.on_kill(self)
            finally:
                self.take_locks_away()  # those that the driver claimed meanwhile

    def _prepare_spark(
        self, store: Described[StoreSpec], sink: Described[SinkSpec] | None = None
    ) -> tuple[StoreSpec, dict[str, str | None], Submitter | None]:
        """Check that the connection leads to Spark.

        :returns: the store as Spark opens it; the variables of ``spark-submit``, with the passwords that references of
            store and sink name; and this process, if the driver runs on this machine.
        """
        spec, passwords = store.spec, dict(store.variables)
        if self.store_secret is not None:
            spec, passwords = dataclasses.replace(spec, secret=self.store_secret), {}
        if sink is not None:
            references = sink.spec.secrets.values()
            passwords |= {name: value for name, value in sink.variables.items() if f"env:{name}" in references}
        variables, submitter = self._find_spark(
            spec, None if sink is None else sink.spec, has_passwords=bool(passwords)
        )
        return spec, {**variables, **passwords}, submitter

    def _find_spark(
        self, store: StoreSpec, sink: SinkSpec | None, *, has_passwords: bool
    ) -> tuple[dict[str, str | None], Submitter | None]:
        from export_queue.core.spark import Submitter, check_answers, check_master, is_local, refuse_remote_sqlite

        master, deploy_mode, binary = self._master()
        outer = {**os.environ, **(self.env_vars or {})}
        check_master(master, deploy_mode=deploy_mode)
        self._deploys_to_cluster = deploy_mode == "cluster"
        refuse_remote_sqlite(master, store, sink)
        if deploy_mode == "cluster" and has_passwords:
            raise ConfigurationError(
                "in cluster mode the driver does not receive the worker's environment, and a password must not be on a "
                "command line or in Spark's configuration",
                hint="give store_secret= and sink_secrets= as references to files that the cluster mounts, such as "
                "file:/run/secrets/store",
            )
        programs = find_spark(self.spark_home or configured_spark_home(), binary=binary)
        check_master(master, environment=outer, has_spark_env=programs.has_spark_env(outer))
        self._spark_binary = programs.submit
        if deploy_mode == "cluster":
            # without these, Spark would pass this machine's variables to a driver on another machine
            there = self._python_elsewhere()
            self.conf = {"spark.pyspark.python": there, "spark.pyspark.driver.python": there, **(self.conf or {})}
        python = programs.python if deploy_mode == "cluster" else self.spark_python or programs.python
        # an outer SPARK_HOME would make this spark-submit use the code of another Spark
        variables: dict[str, str | None] = {"SPARK_HOME": None} if python else {}
        if python:
            variables["PYSPARK_DRIVER_PYTHON"] = python
        if is_local(master):
            variables |= {"PYSPARK_PYTHON": python} if python else {}
            variables |= {} if "SPARK_LOCAL_IP" in os.environ else {"SPARK_LOCAL_IP": "127.0.0.1"}
        elif self.spark_python and master.startswith("spark://"):
            variables["PYSPARK_PYTHON"] = self.spark_python
        find_java(outer)
        check_answers(master)
        return variables, None if deploy_mode == "cluster" else Submitter.here()

    def _python_elsewhere(self) -> str:
        """Return the Python of a driver and executors on other machines: the configured one, or Spark's default."""
        conf, variables = self.conf or {}, {**os.environ, **(self.env_vars or {})}
        said = [self.spark_python, *map(conf.get, _PYTHON_SETTINGS), variables.get("PYSPARK_PYTHON")]
        return next((str(one) for one in said if one), "python3")

    def _master(self) -> tuple[str, str | None, str]:
        """Return master, deploy mode and program of the Spark connection."""
        # Airflow's own hook takes a missing connection for YARN
        connection = find_connection(self.spark_conn_id, example=_SPARK_EXAMPLE)
        self._conn_id = self.spark_conn_id
        try:
            resolved = self._get_hook()._connection
        except (RuntimeError, NameError) as error:  # raised by Airflow's hook if its import failed
            raise ConfigurationError(
                f"connection {connection.conn_id!r} leads to Kubernetes, whose Airflow provider is not installed",
                hint="pip install apache-airflow-providers-cncf-kubernetes",
            ) from error
        master = str(resolved["master"])
        if master.endswith("://"):
            raise ConfigurationError(
                f"connection {connection.conn_id!r} names no Spark master",
                hint="its host is the master: local[2], spark://host:7077, yarn, k8s://https://host:6443",
            )
        return master, resolved["deploy_mode"], str(resolved["spark_binary"])

    def _submit(
        self,
        context: Context,
        store: Store,
        job: Job,
        variables: Mapping[str, str | None],
        *,
        result: Callable[[], object],
        problem_key: str | None = None,
    ) -> None:
        """Submit a job, and wait for its end.

        :param variables: the environment of ``spark-submit``.
        :param result: returns the result that the driver has stored, if any. It says more than the exit status.
        :param problem_key: the key under which the driver stores its error, which likewise says more.
        """
        from export_queue.core.spark import kept_problem

        self.check_killed()
        self._take_job(job)
        self._hook, self._instance, self.spark_ui = None, context["ti"], None
        try:
            with environment(variables):
                SparkSubmitOperator.execute(self, context)
        except Exception:
            if not result():
                if (problem := kept_problem(store, problem_key)) is not None:
                    raise problem from None
                raise

    def _submit_detached(
        self, context: Context, job: Job, variables: Mapping[str, str | None], output: DriverOutput
    ) -> subprocess.Popen[Any]:
        """Submit a job, and wait for nothing.

        :param variables: the environment of ``spark-submit``.
        :param output: takes the output of ``spark-submit``.
        :returns: the running ``spark-submit``. In cluster modes it ends once the cluster has accepted the job.
        """
        self.check_killed()
        self._take_job(job)
        if self._deploys_to_cluster:
            self.conf = {**(self.conf or {}), **_ACCEPTED_IS_ENOUGH}
        self._hook, self._output, self.spark_ui = None, output, None
        with environment(variables):
            SparkSubmitOperator.execute(self, context)
        assert self._detached is not None
        return self._detached

    def _get_hook(self) -> SparkSubmitHook:
        hook = SparkSubmitOperator._get_hook(self)
        # everything else that Airflow does for a submission stays
        read = hook._process_spark_submit_log
        setattr(hook, "_process_spark_submit_log", lambda lines: read(self._watched(lines)))  # noqa: B010
        if self._output is not None:
            setattr(hook, "submit", partial(self._start_detached, hook, self._output))  # noqa: B010
        return hook

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a submission, and store the address of Spark's UI when one tells it."""
        for line in lines:
            if self.spark_ui is None and (found := _SPARK_UI.fullmatch(line)):
                self.spark_ui = found[1]
                try:
                    self._instance.xcom_push(SparkUiLink().xcom_key, self.spark_ui)
                except Exception as error:  # a link is no reason to fail
                    self.log.warning("The link to Spark's UI cannot be shown: %s", error)
            yield line

    def _start_detached(self, hook: SparkSubmitHook, output: DriverOutput, application: str) -> None:
        self._detached = start_detached(hook._build_spark_submit_command(application), hook._env or {}, output)

    def _take_job(self, job: Job) -> None:
        """Set the job of the next submission."""
        self.application = job.application
        self.application_args = list(job.arguments)
        if job.py_files not in (self.py_files or "").split(","):  # a second submission
            self.py_files = ",".join(part for part in (job.py_files, self.py_files) if part)
        self.conf = {**job.conf, **(self.conf or {})}


def check_references(references: Mapping[str, str | None]) -> None:
    """Check that arguments are references to secrets.

    :param references: by name of the argument.
    :raises InvalidArgument: an argument is not a reference.
    """
    for what, reference in references.items():
        if reference is not None and not is_reference(reference):
            # the value is not shown: it may be a password
            raise InvalidArgument(f"{what}: expected env:NAME, file:/PATH or module:callable, found another text")
