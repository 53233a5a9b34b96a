"""The operator that drains a queue on Spark."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.core.arguments import number, whole_number
from export_queue.core.errors import ConfigurationError, InvalidArgument, SparkJobFailed
from export_queue.core.references import is_reference
from export_queue.hooks import ExportQueueHook, environment, open_store
from export_queue.hooks.connections import find_connection
from export_queue.hooks.tasks import task_name
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.free_units import OpenUnits
from export_queue.operators.spark_home import configured_spark_home, find_java, find_spark
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport
    from export_queue.core.sinks import SinkSpec
    from export_queue.core.spark import DrainArguments, Submitter
    from export_queue.core.store import StoreSpec

_SPARK_EXAMPLE = {"conn_type": "spark", "host": "local[2]"}


class ExportQueueSparkDrainOperator(DrainTask, SparkSubmitOperator):
    """Drain a queue into a sink on Spark: one submission, whose tasks are the ranges that have work.

    Where nothing waits, nothing is submitted; while others hold all that waits, the task waits for them before it
    submits. To spread a drain over several submissions, map the operator over
    groups of ranges: ``ExportQueueSparkDrainOperator.partial(…).expand(ranges=sensor.output)`` with an
    :class:`~export_queue.sensors.ExportQueueSensor` that has ``groups=N``.

    Passwords reach the driver through the environment of ``spark-submit``; they are in no argument, no configuration,
    no rendered field and no log. In cluster modes, which do not pass the environment on, give references to what the
    cluster mounts: ``store_secret`` and ``sink_secrets``.

    :class:`~export_queue.operators.drain_task.DrainTask` has the arguments of every drain, and the meaning of success.
    Spark's Python must be able to import the exporter.

    :param max_parallel: most tasks that drain at once; by default Spark's cores decide. (templated)
    :param spark_conn_id: connection of Spark, of the type ``spark``, whose host is the master, such as ``local[2]`` or
        ``spark://host:7077``. (templated)
    :param spark_home: folder of a virtual environment or of a Spark distribution with ``bin/spark-submit``; by default
        the option ``spark_home`` of the configuration section ``export_queue``, then the PATH. (templated)
    :param spark_python: the Python that has PySpark; by default ``bin/python`` beside ``spark-submit``. With a master
        ``spark://…`` executors run it, too; else Spark's own setting counts there, and is checked. (templated)
    :param start_timeout: seconds that Spark may take to start and to find an executor; raise it where the cluster's
        queue is long. (templated)
    :param store_secret: reference to the store's password where Spark runs: ``env:NAME``, ``file:/PATH`` or
        ``module:callable``.
    :param sink_secrets: the same for the sink, by option: ``{"password": "file:/run/secrets/redis"}``.
    :param kwargs: further arguments of ``SparkSubmitOperator``.
    """

    template_fields: Collection[str] = (  # type: ignore[assignment]
        *SparkSubmitOperator.template_fields,
        *DrainTask.template_fields,
        "max_parallel",
        "spark_conn_id",
        "spark_home",
        "spark_python",
        "start_timeout",
    )
    ui_color = "#fdebd0"

    def __init__(
        self,
        *,
        max_parallel: int | str | None = None,
        spark_conn_id: str = "spark_default",
        spark_home: str | None = None,
        spark_python: str | None = None,
        start_timeout: float | str = 600.0,
        store_secret: str | None = None,
        sink_secrets: Mapping[str, str] | None = None,
        name: str = "export-queue-drain",
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        # durable=True would take up an earlier submission, whose entries are gone from the queue anyway.
        super().__init__(name=name, durable=durable, conn_id=spark_conn_id, **kwargs)
        self.max_parallel = max_parallel
        self.spark_conn_id = spark_conn_id
        self.spark_home = spark_home
        self.spark_python = spark_python
        self.start_timeout = start_timeout
        self.store_secret = store_secret
        self.sink_secrets = dict(sink_secrets or {})
        for what, reference in {"store_secret": store_secret, **self.sink_secrets}.items():
            if reference is not None and not is_reference(reference):
                # Not repeated here: it may be a password.
                raise InvalidArgument(f"{what}: expected env:NAME, file:/PATH or module:callable, found another text")
        self._is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the drain and wait for its report.

        :returns: the report, as plain values.
        """
        with terminal_errors_fail_at_once():
            report = self._drain(context)
        self.log.info("%s", report.line())
        return report.to_dict()

    def on_kill(self) -> None:
        """Kill the submission and take its leases away, so that a driver that outlives it changes nothing."""
        self._is_killed = True
        self.take_leases_away()  # at once: to kill a job on a cluster may take longer than there is time
        if self._hook is not None:
            try:
                super().on_kill()
            finally:
                self.take_leases_away()  # those that the driver has claimed meanwhile

    def _drain(self, context: Context) -> DrainReport:
        from export_queue.core.spark import DrainArguments

        sink = self.describe_sink()
        spec = dataclasses.replace(sink.spec, secrets={**sink.spec.secrets, **self.sink_secrets})
        self._store = ExportQueueHook(self.export_queue_conn_id).describe()
        passwords = {name: value for name, value in sink.variables.items() if f"env:{name}" in spec.secrets.values()}
        if self.store_secret is None:
            passwords |= self._store.variables
        store_spec = dataclasses.replace(self._store.spec, secret=self.store_secret or self._store.spec.secret)
        request = self.request(task_name(context), sink_name=spec.name)
        max_parallel = whole_number(self.max_parallel, what="max_parallel") if self.max_parallel else None
        start_timeout = number(self.start_timeout, what="start_timeout")
        variables, submitter = self._prepare_spark(store_spec, spec, has_passwords=bool(passwords))
        reports: list[DrainReport] = []
        self._owner = request.owner
        with open_store(self._store) as store, OpenUnits.of(store, request) as units:
            while units.wait(self._go_on):
                # One submission takes what is free; for the rest this task waits, and holds no executor meanwhile.
                arguments = DrainArguments(
                    store=store_spec,
                    sink=spec,
                    request=units.request_of(len(reports)),
                    max_parallel=max_parallel,
                    start_timeout=start_timeout,
                    submitter=submitter,
                )
                self._describe_job(arguments)
                with environment({**variables, **passwords}):
                    self._submit(store, context, arguments.request.drain_id)
                report = self._report(store, arguments.request.drain_id)
                for warning in report.warnings():
                    self.log.warning("%s", warning)
                if report.problem is not None:
                    raise report.problem.to_error()
                reports.append(report)
        return units.report(reports)

    def _go_on(self) -> None:
        if self._is_killed:
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")

    # -- before --------------------------------------------------------------------------------------------------

    def _prepare_spark(
        self, store: StoreSpec, sink: SinkSpec, *, has_passwords: bool
    ) -> tuple[dict[str, str | None], Submitter | None]:
        """Check that the connection leads to Spark.

        :returns: the variables that Spark needs; and this process, where the driver runs beside it.
        """
        from export_queue.core.spark import Submitter, check_master, is_local, refuse_remote_sqlite

        master, deploy_mode, binary = self._master()
        outer = {**os.environ, **(self.env_vars or {})}
        check_master(master, deploy_mode=deploy_mode)
        refuse_remote_sqlite(master, store, sink)
        if deploy_mode == "cluster" and has_passwords:
            raise ConfigurationError(
                "in cluster mode the driver does not get the environment of the worker, and a password is neither put "
                "on a command line nor into Spark's configuration",
                hint="give store_secret= and sink_secrets= as references to files that the cluster mounts, such as "
                "file:/run/secrets/store",
            )
        programs = find_spark(self.spark_home or configured_spark_home(), binary=binary)
        check_master(master, environment=outer, has_spark_env=programs.has_spark_env(outer))
        self._spark_binary = programs.submit
        python = self.spark_python or programs.python
        # An outer SPARK_HOME would lead this spark-submit to the code of another Spark.
        variables: dict[str, str | None] = {"SPARK_HOME": None} if python else {}
        if python:
            variables["PYSPARK_DRIVER_PYTHON"] = python
        if is_local(master):
            variables |= {"PYSPARK_PYTHON": python} if python else {}
            variables |= {} if "SPARK_LOCAL_IP" in os.environ else {"SPARK_LOCAL_IP": "127.0.0.1"}
        elif self.spark_python and master.startswith("spark://"):
            variables["PYSPARK_PYTHON"] = self.spark_python
        find_java(outer)
        return variables, None if deploy_mode == "cluster" else Submitter.here()

    def _master(self) -> tuple[str, str | None, str]:
        """Return the master, the deploy mode and the name of the program that the Spark connection leads to."""
        # Airflow's own hook answers a missing connection with YARN.
        connection = find_connection(self.spark_conn_id, example=_SPARK_EXAMPLE)
        self._conn_id = self.spark_conn_id
        try:
            resolved = self._get_hook()._connection
        except (RuntimeError, NameError) as error:  # of Airflow's hook, whose import has failed
            raise ConfigurationError(
                f"connection {connection.conn_id!r} leads to Kubernetes, for which Airflow's own part is not installed",
                hint="pip install apache-airflow-providers-cncf-kubernetes",
            ) from error
        master = str(resolved["master"])
        if master.endswith("://"):
            raise ConfigurationError(
                f"connection {connection.conn_id!r} names no Spark master",
                hint="its host is the master: local[2], spark://host:7077, yarn, k8s://https://host:6443",
            )
        return master, resolved["deploy_mode"], str(resolved["spark_binary"])

    def _describe_job(self, arguments: DrainArguments) -> None:
        from export_queue.core.spark import describe_job

        job = describe_job(arguments)
        self.application = job.application
        self.application_args = list(job.arguments)
        if job.py_files not in (self.py_files or "").split(","):  # a second submission
            self.py_files = ",".join(part for part in (job.py_files, self.py_files) if part) or None
        self.conf = {**job.conf, **(self.conf or {})}

    # -- after ---------------------------------------------------------------------------------------------------

    def _submit(self, store: Store, context: Context, drain_id: str) -> None:
        self._hook = None
        try:
            super().execute(context)
        except Exception:
            # The driver knows better than its exit code what went wrong, if it came to say so.
            if not store.reports(drain_id=drain_id):
                raise

    def _report(self, store: Store, drain_id: str) -> DrainReport:
        from export_queue.core.drain import DrainReport

        found = store.reports(drain_id=drain_id)
        if not found:
            raise SparkJobFailed(f"the Spark driver ended without a report; its id is {drain_id}")
        return DrainReport.from_dict(found[0])
