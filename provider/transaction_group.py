"""``export_transaction``: a task group whose tasks write in one long transaction, which the last task commits."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import TaskGroup
from airflow.sdk.exceptions import AirflowSkipException

from export_queue.core.arguments import names
from export_queue.core.errors import AlreadyCommitted, ConflictError, RegistrationLost, TransactionError
from export_queue.hooks import ExportQueueHook, open_store
from export_queue.hooks.once import TaskOnce, UnitOfWork
from export_queue.hooks.rendered import Reader, RenderedTask, name_or
from export_queue.hooks.tasks import STAGED_TASKS, mapped_index, notes_of, recorded_state, task_name
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

    from export_queue.core.client import Store

MAY_HAVE_WRITTEN = frozenset(("success", "running", "deferred"))
"""States of tasks that do not start again, and so write nothing into a transaction that begins now."""


def unit_name(context: Mapping[str, Any], group_id: str) -> str:
    """Return the name of a group in one run: the idempotency key, and the client of its transactions."""
    return task_name(context, group_id)


class _TaskOfGroup(RenderedTask):
    """A task that the group adds by itself."""

    template_fields: Collection[str] = ("export_queue_conn_id",)
    readers: ClassVar[Mapping[str, Reader]] = {"export_queue_conn_id": name_or(ExportQueueHook.default_conn_name)}
    ui_color = "#fef9e7"

    def __init__(
        self, *, transaction_group: str, export_queue_conn_id: str = ExportQueueHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.transaction_group = transaction_group
        self.export_queue_conn_id = export_queue_conn_id

    def abort_open(self, store: Store, name: str) -> int:
        """Abort the transactions in progress that a task of this name began, and return their number."""
        found = [one.id for one in store.transactions_in_progress() if one.client == name]
        for number in found:
            self.log.info("Aborting transaction %s of %r", number, name)
            store.abort(number)
        return len(found)


class ExportTransactionBeginOperator(_TaskOfGroup):
    """Begin the transaction of a group.

    A transaction that an earlier try has begun is aborted first, so that none is left open.

    :param transaction_group: id of the group.
    :param abort_task: id of the task that aborts the transaction.
    :param export_queue_conn_id: connection of the store. (templated)
    :param queues: the only queues to which the transaction may add. (templated)
    :param transaction_timeout: seconds until the commit is refused; 24 hours by default.
    """

    template_fields: Collection[str] = ("export_queue_conn_id", "queues")
    readers: ClassVar[Mapping[str, Reader]] = {**_TaskOfGroup.readers, "queues": names}

    def __init__(
        self,
        *,
        abort_task: str,
        queues: list[str] | str | None = None,
        transaction_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.abort_task = abort_task
        self.queues = queues
        self.transaction_timeout = transaction_timeout

    def execute(self, context: Context) -> dict[str, Any]:
        """Begin.

        :returns: the transaction, for ``store.resume``.
        :raises AlreadyCommitted: the group has committed, but Airflow has not recorded the success of its commit.
        :raises TransactionError: other tasks of the group are not cleared, and what they wrote would be missing.
        """
        self.read_arguments()
        name = unit_name(context, self.transaction_group)
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        with terminal_errors_fail_at_once(), open_store(described, client=name) as store:
            self.abort_open(store, name)
            state = store.idempotency(name)
            if state.committed:
                error = AlreadyCommitted(name, state.result)
                error.hint = (
                    "the work of the group has taken effect: mark its tasks as success; or, to do it again, run "
                    f"`export-queue idempotency {shlex.quote(name)} --close` and clear the group"
                )
                raise error
            self._require_all_cleared(context)
            return store.begin(timeout=self.transaction_timeout, queues=names(self.queues, what="queues"))

    def _require_all_cleared(self, context: Context) -> None:
        instance: Any = context["ti"]
        index = mapped_index(instance)
        found = instance.get_task_states(
            dag_id=instance.dag_id,
            run_ids=[instance.run_id],
            task_group_id=self.transaction_group,
            map_index=index,  # in a mapped group, each of its instances has a transaction of its own
        ).get(instance.run_id, {})
        own = [name if index is None else f"{name}_{index}" for name in (instance.task_id, self.abort_task)]
        others = [task for task, state in sorted(found.items()) if state in MAY_HAVE_WRITTEN and task not in own]
        if others:
            raise TransactionError(
                f"group {self.transaction_group!r}: expected all tasks cleared before a new transaction begins, found "
                f"{', '.join(f'{task} ({found[task]})' for task in others)}, whose writes would be missing",
                hint="clear the whole group",
            )


class ExportTransactionCommitOperator(TaskOnce, _TaskOfGroup):
    """Commit the transaction of a group, once.

    :param transaction_group: id of the group.
    :param begin_task: id of the task that has begun the transaction.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    def __init__(self, *, begin_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_task = begin_task

    def execute(self, context: Context) -> str:
        """Commit. A repetition after a success that was lost changes nothing.

        :returns: the transaction's id, as text.
        """
        self.read_arguments()
        transaction = self._transaction(context)
        if transaction is None:
            raise AirflowSkipException(f"group {self.transaction_group!r} has no transaction: its begin did not run")
        name = unit_name(context, self.transaction_group)
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        with terminal_errors_fail_at_once(), open_store(described) as store:
            state = store.idempotency(name)
            if not state.committed:
                committed = str(self._commit(store, name, transaction))
            elif state.result == transaction["id"]:
                self.log.info("Transaction %s has committed in an earlier try", state.result)
                committed = str(state.result)
            else:
                raise AlreadyCommitted(name, state.result)
        self._done = UnitOfWork(described, name, state.generation)
        return committed

    def _commit(self, store: Store, name: str, transaction: dict[str, Any]) -> int:
        try:
            _forget_tasks(store, transaction)
            return store.commit(transaction, idempotency_key=name)
        except (ConflictError, RegistrationLost) as error:
            error.transient = False  # this transaction has ended
            error.hint = "clear the whole group: it runs again, in a new transaction"
            raise

    def _transaction(self, context: Context) -> dict[str, Any] | None:
        """Read what the begin returned.

        An argument would put this task directly after a set-up task, where Airflow allows no other trigger rule.
        """
        instance: Any = context["ti"]
        index = mapped_index(instance)
        found: dict[str, Any] | None = instance.xcom_pull(
            task_ids=self.begin_task, **({} if index is None else {"map_indexes": index})
        )
        if found is None and recorded_state(instance, self.begin_task) == "success":
            raise TransactionError(
                f"group {self.transaction_group!r}: expected the XCom of {self.begin_task}, which has begun a "
                "transaction, found none",
                hint="clear the whole group",
            )
        return found


def _forget_tasks(store: Store, transaction: dict[str, Any]) -> None:
    """Delete the notes about tasks, which nobody needs after the commit."""
    with store.resume(transaction) as tx:
        notes = tx.table(STAGED_TASKS)
        for row, column, _ in list(notes.scan(prefix=notes_of(tx.id))):
            notes.delete(row, column)


class ExportTransactionAbortOperator(_TaskOfGroup):
    """Abort the transaction of a group, unless it has committed.

    :param transaction_group: id of the group.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    def execute(self, context: Context) -> int:
        """Abort.

        :returns: the number of transactions that were open.
        """
        self.read_arguments()
        with terminal_errors_fail_at_once(), ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            return self.abort_open(store, unit_name(context, self.transaction_group))


class ExportTransactionGroup(TaskGroup):
    """A task group whose tasks write in one transaction of the store."""

    def __init__(
        self,
        group_id: str,
        *,
        queues: list[str] | str | None = None,
        transaction_timeout: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id=group_id, **kwargs)
        self._queues, self._timeout, self._conn_id = queues, transaction_timeout, export_queue_conn_id
        self._begin: Any = None

    @property
    def handle(self) -> XComArg:
        """The transaction as an argument of tasks: for ``@task.export_transaction`` and for ``store.resume``."""
        if self._begin is None:
            raise TypeError(f"export_transaction {self.group_id!r}: handle is known inside of its with block")
        found: XComArg = self._begin.output
        return found

    def __enter__(self) -> ExportTransactionGroup:
        super().__enter__()
        self._begin = ExportTransactionBeginOperator(
            task_id="begin",
            abort_task=self.child_id("abort"),
            queues=self._queues,
            transaction_timeout=self._timeout,
            **self._shared,
        ).as_setup()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            super().__exit__(kind, error, trace)

    @property
    def _shared(self) -> dict[str, Any]:
        return {"transaction_group": self.group_id, "export_queue_conn_id": self._conn_id}

    def _end(self) -> None:
        """Add the tasks that end the transaction, after all tasks of the group."""
        inner = [task for task in self.iter_tasks() if task is not self._begin and not task.is_teardown]
        if not inner:
            raise TypeError(f"export_transaction {self.group_id!r}: expected tasks in its with block, found none")
        commit = ExportTransactionCommitOperator(
            task_id="commit", begin_task=self._begin.task_id, trigger_rule="none_failed", **self._shared
        )
        abort = ExportTransactionAbortOperator(task_id="abort", **self._shared)
        ids = {task.task_id for task in inner}
        for task in inner:
            if not task.upstream_task_ids & ids:
                self._begin >> task
            task >> commit
        # With on_failure_fail_dagrun the teardown would be the run's last task, and its success that of the run.
        commit >> abort.as_teardown(setups=self._begin)


def export_transaction(
    group_id: str,
    *,
    queues: list[str] | str | None = None,
    transaction_timeout: float | None = None,
    export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    **kwargs: Any,
) -> ExportTransactionGroup:
    """Make a task group whose tasks write in one transaction: all of it takes effect, or nothing.

    The group begins with a set-up task, ``begin``. Its tasks write with ``@task.export_transaction(transaction=
    tx.handle)``, or with ``store.resume``. After all of them the task ``commit`` commits; if one has failed, the
    teardown task ``abort`` discards everything.

    :param group_id: id of the group, which is unique in the DAG.
    :param queues: the only queues to which the transaction may add, so that work on others need not wait. (templated)
    :param transaction_timeout: seconds until the commit is refused; 24 hours by default, 7 days at most.
    :param export_queue_conn_id: connection of the store. (templated)
    :param kwargs: further arguments of every task group.
    :returns: the group, for a ``with`` statement; its ``handle`` is the argument for tasks.
    """
    return ExportTransactionGroup(
        group_id,
        queues=queues,
        transaction_timeout=transaction_timeout,
        export_queue_conn_id=export_queue_conn_id,
        **kwargs,
    )
