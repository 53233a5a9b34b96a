"""The operator that sets up a queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import duration, given, mapping, names, required_text, seconds, text, whole_number
from export_queue.core.errors import InvalidArgument
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.lineage import Lineage, LineageTask, queue_data
from export_queue.links import QueuePageLink
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store


class ExportQueueConfigureOperator(LineageTask):
    """Create an export queue with its subscriptions, and the store if it does not exist. A repetition changes nothing.

    A queue with subscriptions gets those that it lacks, and their first load. If a queue or a table exists with other
    options, or a queue with other subscriptions, the task fails and lists the differences.

    :param queue_id: the queue: 1 to 64 of ``a-z 0-9 _ . -``. (templated)
    :param buckets: number of buckets that keys are distributed over. (templated)
    :param buckets_per_range: buckets per unit of work and locking; by default a tenth of the buckets. (templated)
    :param key: codec of keys: ``str``, ``int``, ``bytes`` or an import path. (templated)
    :param value: codec of values: ``json``, ``str``, ``int``, ``bytes`` or an import path. (templated)
    :param max_value_bytes: size of the largest value that the queue accepts. (templated)
    :param exclusive: whether two concurrent transactions that add the same key conflict.
    :param coalesce: ``latest`` lets compactions keep only the latest entry of each key; None keeps all. (templated)
    :param subscriptions: names of the queue's subscriptions, each of which receives every entry; by default none.
        (templated)
    :param first_load: where the entries from before a new subscription come from: ``state``, ``table:NAME`` of a table
        of the store, or the import path ``module:name`` of a function or source. By default ``state`` if the queue has
        a complete one; otherwise the first load stays missing, and the log says so. (templated)
    :param state: whether the queue remembers the latest entry of each key, for mirrors and verification.
    :param history: how long the state keeps former values: seconds, or text such as ``7d``; by default an hour.
        (templated)
    :param tables: tables that the transactions write, with the options of ``Store.configure_table``:
        ``{"airports": {"row": "str", "value": "json"}}``. (templated)
    :param create_store: create the store if it does not exist, which needs the right to create tables; if False, run
        ``export-queue init``.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "buckets": optional(whole_number, default=1009),
        "buckets_per_range": optional(whole_number),
        "key": name_or("str"),
        "value": name_or("json"),
        "max_value_bytes": optional(whole_number, default=1 << 20),
        "coalesce": text,
        "subscriptions": names,
        "first_load": text,
        "history": optional(duration),
        "tables": mapping,
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {"subscriptions": "json", "tables": "json"}
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        queue_id: str,
        buckets: int | str = 1009,
        buckets_per_range: int | str | None = None,
        key: str = "str",
        value: str = "json",
        max_value_bytes: int | str = 1 << 20,
        exclusive: bool = False,
        coalesce: str | None = None,
        subscriptions: Sequence[str] | str | None = None,
        first_load: str | None = None,
        state: bool = False,
        history: float | str | None = None,
        tables: Mapping[str, Mapping[str, Any]] | str | None = None,
        create_store: bool = True,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.buckets: Any = buckets
        self.buckets_per_range: Any = buckets_per_range
        self.key = key
        self.value = value
        self.max_value_bytes: Any = max_value_bytes
        self.exclusive = exclusive
        self.coalesce = coalesce
        self.subscriptions = subscriptions
        self.first_load = first_load
        self.state = state
        self.history: Any = history
        self.tables: Any = tables
        self.create_store = create_store
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Configure the queue.

        :returns: the queue's id, its number of buckets and its units.
        """
        with terminal_errors_fail_at_once():
            self.read_arguments()
            tables = {name: _table_options(name, options) for name, options in (self.tables or {}).items()}
            return self._configure(tables)

    def lineage(self) -> Lineage:
        """The queue that is made."""
        return Lineage(outputs=[queue_data(self.export_queue_conn_id, self.queue_id)])

    def _configure(self, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            if self.create_store:
                store.create()
            readers = self._readers(store)
            queue = store.configure_queue(
                self.queue_id,
                buckets=self.buckets,
                buckets_per_range=self.buckets_per_range,
                key=self.key,
                value=self.value,
                max_value_bytes=self.max_value_bytes,
                exclusive=self.exclusive,
                coalesce=self.coalesce,
                subscriptions=readers,
                state=self.state,
                history=self.history,
            )
            for name, options in tables.items():
                store.configure_table(name, **options)
            self._subscribe(store)
        units = queue.units()
        self.log.info("Queue %s is ready: %d buckets in %d units", queue.id, queue.buckets, len(units))
        return {"queue": queue.id, "buckets": queue.buckets, "units": [unit.to_json() for unit in units]}

    def _readers(self, store: Store) -> Sequence[str] | None:
        """Return the subscriptions that the queue has, if it lacks some that it is to have, or else those."""
        wanted: Sequence[str] | None = self.subscriptions
        if wanted is None or all(queue.id != self.queue_id for queue in store.queues()):
            return wanted
        found = [reader.name for reader in store.subscriptions(self.queue_id)]
        return found if found and set(found) <= set(wanted) else wanted

    def _subscribe(self, store: Store) -> None:
        """Add the subscriptions that the queue lacks, and make the first loads that are missing."""
        for name in self.subscriptions or ():
            reader = store.subscribe(self.queue_id, name)
            if reader.first_load != "missing":
                continue
            source = self.first_load or self._complete_state(store)
            if source is None:
                self.log.warning(
                    "Subscription %s lacks what was added before it: pass first_load=, or run export-queue first-load "
                    "%s or waive-first-load %s",
                    *(reader.id,) * 3,
                )
                continue
            self.log.info("Subscription %s: first load from %s", reader.id, source)
            report = store.first_load(reader.id, source=source)
            self.log.info("%s", report.line())

    def _complete_state(self, store: Store) -> str | None:
        return "state" if self.state and store.state(self.queue_id).is_complete else None


_TABLE_READERS: Mapping[str, Reader] = {"conflict": text, "ttl": seconds, "row": text, "value": text}


def _table_options(name: str, options: Any) -> dict[str, Any]:
    """Read the options of one table; their values may come from templates."""
    where = f"tables[{name!r}]"
    found = mapping(options, what=where) or {}
    if unknown := sorted(found.keys() - _TABLE_READERS.keys()):
        raise InvalidArgument(
            f"{where}: a table has no option {', '.join(unknown)}; it has: {', '.join(_TABLE_READERS)}"
        )
    kept = {option: value for option, value in found.items() if given(value) is not None}
    return {option: _TABLE_READERS[option](value, what=f"{where}[{option!r}]") for option, value in kept.items()}
