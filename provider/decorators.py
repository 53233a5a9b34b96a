"""``@task.export_transaction``: a task whose function runs inside one transaction of the store."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from export_queue.core.arguments import mapping
from export_queue.core.callables import check_runs, name_of, returned
from export_queue.core.errors import InvalidArgument
from export_queue.core.retry import Retry
from export_queue.core.transactions import as_json
from export_queue.hooks import ExportQueueHook, open_store
from export_queue.hooks.once import TaskOnce, UnitOfWork
from export_queue.hooks.rendered import Reader, RenderedTask, name_or
from export_queue.hooks.tasks import STAGED_TASKS, notes_of, task_name
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from export_queue.core.client import TransactionContext

PARAMETER = "tx"


class ExportTransactionOperator(TaskOnce, RenderedTask, DecoratedOperator, PythonOperator):
    """Run a function in a transaction that takes effect once, however often the task is retried.

    The transaction carries the task's name as its idempotency key. If an earlier try has committed already, the
    function is not called, and the stored result is returned. Once Airflow has accepted the task's success, clearing
    the task is new work, and runs.

    :param python_callable: the function, as :func:`export_transaction_task` prepared it.
    :param op_args: its positional arguments. (templated)
    :param op_kwargs: its keyword arguments. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    :param transaction: the long transaction in which the function writes, instead of one of its own: ``tx.handle`` of
        :func:`export_queue.export_transaction`, or what ``store.begin`` returned. The task's work is in it once,
        however often the task is retried. (templated)
    :param transaction_timeout: seconds after which the transaction can no longer commit. A function that itself takes
        longer fails the task at once.
    :param attempts: maximum number of runs of the function, each from its start, if its transaction has a conflict.
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
        "transaction": mapping,
    }
    template_fields: Collection[str] = (  # type: ignore[assignment]
        "templates_dict",
        "op_args",
        "op_kwargs",
        "export_queue_conn_id",
        "transaction",
    )
    custom_operator_name = "@task.export_transaction"
    ui_color = "#fef9e7"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        transaction: Any = None,
        transaction_timeout: float = 30.0,
        attempts: int = 10,
        **kwargs: Any,
    ) -> None:
        arguments = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=arguments, **arguments, **kwargs)  # type: ignore[arg-type]
        self.export_queue_conn_id = export_queue_conn_id
        self.transaction = transaction
        self.transaction_timeout = transaction_timeout
        self.attempts = attempts

    def execute(self, context: Context) -> Any:
        """Run the function.

        :returns: its result, as it reads back from JSON.
        """
        self.read_arguments()
        self._idempotency_key = task_name(context)
        return super().execute(context)

    def execute_callable(self) -> Any:
        """Run the function in its transaction, unless an earlier try has committed it."""
        if self.transaction is not None:
            return self._execute_inside(self.transaction)
        function = self.python_callable.__wrapped__  # type: ignore[attr-defined]
        calls = 0

        def work(transaction: TransactionContext) -> Any:
            nonlocal calls
            calls += 1
            return function(*self.op_args, **{**self.op_kwargs, PARAMETER: transaction})

        described = ExportQueueHook(self.export_queue_conn_id).describe()
        with terminal_errors_fail_at_once(), open_store(described) as store:
            result = store.run(
                work,
                idempotency_key=self._idempotency_key,
                timeout=self.transaction_timeout,
                retry=Retry(attempts=self.attempts),
            )
            generation = store.idempotency(self._idempotency_key).generation
        self._done = UnitOfWork(described, self._idempotency_key, generation)
        if not calls:
            self.log.warning(
                "Transaction %r committed in an earlier try, so the function was not called; returning the stored "
                "result. To run it again, run `export-queue idempotency %s --close` and clear the task.",
                self._idempotency_key,
                shlex.quote(self._idempotency_key),
            )
        return result

    def _execute_inside(self, transaction: dict[str, Any]) -> Any:
        """Run the function in a transaction of several tasks, unless an earlier try's writes are in it."""
        function = self.python_callable.__wrapped__  # type: ignore[attr-defined]
        described = ExportQueueHook(self.export_queue_conn_id).describe()
        name = self._idempotency_key
        with terminal_errors_fail_at_once(), open_store(described) as store, store.resume(transaction) as tx:
            notes, row = tx.table(STAGED_TASKS), f"{notes_of(tx.id)}{name}"
            found = notes.get(row, "result")
            if found is not None:
                self.log.warning("An earlier try of %r has written already; returning its result", name)
                return json.loads(found)
            result = function(*self.op_args, **{**self.op_kwargs, PARAMETER: tx})
            text = as_json(returned(result, f"function {name_of(function)}"), name)
            notes.set(row, "result", text.encode())
            return result


def export_transaction_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task of a function that receives a transaction as its keyword argument ``tx``.

    What the function writes through ``tx`` commits when it returns, together with its result, which must be JSON. It
    may run several times before one commit succeeds, so its other effects must be safe to repeat.

    :param python_callable: the function.
    :param multiple_outputs: whether a returned mapping becomes one XCom per key.
    :param kwargs: ``export_queue_conn_id``, ``transaction``, ``transaction_timeout``, ``attempts`` and arguments of
        every operator.
    """
    if python_callable is None:
        return functools.partial(export_transaction_task, multiple_outputs=multiple_outputs, **kwargs)  # type: ignore[return-value]
    return task_decorator_factory(
        python_callable=_without_transaction(python_callable),
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ExportTransactionOperator,
        **kwargs,
    )


def _without_transaction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide ``tx`` from Airflow, which would require its value when the DAG is parsed."""
    name = name_of(function)
    try:
        check_runs(function, "@task.export_transaction")
    except InvalidArgument as error:
        raise TypeError(str(error)) from None
    signature = inspect.signature(function)
    found = signature.parameters.get(PARAMETER)
    if found is None or found.kind not in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"{name}: @task.export_transaction needs a keyword parameter {PARAMETER}")

    @functools.wraps(function)
    def outside(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} runs only as a task, which passes it a transaction")

    visible = [parameter for name, parameter in signature.parameters.items() if name != PARAMETER]
    outside.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    return outside
