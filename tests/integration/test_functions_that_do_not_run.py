"""Functions that a call does not run count for nothing: nothing is committed, removed or set aside because of them."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from export_queue import (
    AfterCommitFailed,
    CodecError,
    EntryError,
    ExporterError,
    InvalidArgument,
    MemorySink,
    Put,
    Retry,
    SinkConfigurationError,
    SinkSpec,
    Store,
    drain,
    follow,
)
from export_queue.core.sinks import CompositeSink

Function = Callable[..., Any]


async def coroutine(*_: Any, **__: Any) -> None: ...


def generator(*_: Any, **__: Any) -> Iterator[Any]:
    yield Put("c", "k", {})


FORMS: dict[str, Function] = {
    "async": coroutine,
    "partial": functools.partial(coroutine),
    "lambda": lambda *_, **__: coroutine(),
}
"""Some of the forms; the tests of ``core.callables`` have all."""
WITH_GENERATORS = {**FORMS, "generator": generator, "lambda of generator": lambda *_, **__: generator()}
KNOWN = (FORMS["async"], FORMS["partial"], generator)
"""Those that are refused before they are called."""


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in seen if "never awaited" in str(one.message)] == []


@pytest.fixture
def orders(sqlite_url: str) -> Iterator[Store]:
    """A store whose queue ``orders`` has one entry."""
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            tx.queue("orders").add("anna", {"n": 1})
        yield store


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def test_an_observer_that_does_not_run_leaves_the_notification(store: Store) -> None:
    for column, function in WITH_GENERATORS.items():
        store.watch("t", column)
        with store.transaction() as tx:
            tx.table("t").set("anna", column, b"1")
        if function in KNOWN:
            with pytest.raises(InvalidArgument, match="observer: expected a plain function"):
                store.observe("t", column, function)
            assert store.waiting_rows("t", column).rows == (b"anna",)
        else:
            store.observe("t", column, function)
            assert store.process_notifications().failed == 1
            failure = next(one for one in store.observer_failures() if one.column == column.encode())
            assert (failure.row, failure.attempts) == (b"anna", 1)
            assert "which has not run" in failure.error


def test_a_unit_of_work_that_does_not_run_commits_nothing(store: Store) -> None:
    for function in WITH_GENERATORS.values():

        def writes_first(tx: Any, function: Function = function) -> Any:
            tx.table("t").set("anna", "n", b"1")
            return function(tx)

        for work in (function, writes_first):
            with pytest.raises(InvalidArgument, match=r"expected a plain function|has not run"):
                store.run(work, idempotency_key="work")
    assert not store.idempotency("work").committed
    with store.transaction(read_only=True) as tx:
        assert tx.table("t").get("anna", "n") is None


class Resource:
    """A participant of whose steps one does not run."""

    name = "files"

    def __init__(self, step: str, function: Function) -> None:
        self.calls: list[str] = []
        for one in ("start", "update", "changes", "persist", "rollback", "after_commit"):
            setattr(self, one, functools.partial(self.call, one))
        setattr(self, step, function)

    def call(self, step: str, *_: Any) -> Any:
        self.calls.append(step)
        return () if step == "changes" else None


@pytest.mark.parametrize("step", ["start", "update", "changes", "persist", "rollback", "after_commit"])
def test_a_participant_that_does_not_take_part_fails_the_transaction(orders: Store, step: str) -> None:
    for name, function in (FORMS if step == "changes" else WITH_GENERATORS).items():
        resource = Resource(step, function)
        committed = False
        if function in KNOWN:
            with pytest.raises(InvalidArgument, match=rf"{step}\(\) of participant 'files': expected a plain function"):
                work(orders, resource, name)
            assert resource.calls == [], "it has not joined"
        elif step == "rollback":
            with pytest.raises(RuntimeError, match="undo it") as caught:
                work(orders, resource, name, fails=True)
            assert "rollback() of participant 'files' returned" in "".join(caught.value.__notes__)
            assert orders.kept_invalid(), "what it wrote may still be there"
        elif step == "after_commit":
            with pytest.raises(AfterCommitFailed, match=r"after_commit\(\) of participant 'files' returned"):
                work(orders, resource, name)
            committed = True
        else:
            with pytest.raises(InvalidArgument, match=rf"{step}\(\) of participant 'files' returned"):
                work(orders, resource, name)
            assert "rollback" in resource.calls
        with orders.transaction(read_only=True) as tx:
            assert tx.table("t").get(name, "n") == (b"1" if committed else None)


def work(store: Store, resource: Any, row: str, *, fails: bool = False) -> None:
    with store.transaction() as tx:
        tx.join(resource)
        tx.table("t").set(row, "n", b"1")
        tx.checkpoint()
        if fails:
            raise RuntimeError("undo it")


class Owner:
    def __init__(self, method: str, function: Function) -> None:
        setattr(self, method, function)

    def export(self, entry: Any) -> list[Put]:
        return [Put("c", entry.key, entry.value)]


async def async_generator(*_: Any) -> Any:
    yield Put("c", "k", {})


def test_an_exporter_that_does_not_run_removes_nothing_and_sets_nothing_aside(orders: Store) -> None:
    exporters = [
        *FORMS.values(),
        async_generator,
        lambda entry: async_generator(),
        *(Owner(method, one) for method in ("open", "export") for one in FORMS.values()),
        Owner("open", generator),
        Owner("open", lambda: generator()),
    ]
    sink = MemorySink()
    for exporter in exporters:
        with pytest.raises(ExporterError, match=r"expected a plain function|has not run"):
            drain(orders, "orders", sink, exporter=exporter)
        assert (waiting(orders), orders.dead_letters.count("orders")) == (1, 0)


def test_exporters_that_yield_are_read_row_by_row(orders: Store) -> None:
    sink = MemorySink()
    for queue, exporter in {"first": generator, "second": lambda entry: generator()}.items():
        orders.configure_queue(queue)
        with orders.transaction() as tx:
            tx.queue(queue).add("berta", {"n": 2})
        report = drain(orders, queue, sink, exporter=exporter)
        assert report.acknowledged
        assert not report.dead


class Replaced(MemorySink):
    def __init__(self, method: str, function: Function, name: str) -> None:
        super().__init__(name)
        setattr(self, method, function)


@pytest.mark.parametrize("method", ["admit", "apply"])
def test_a_sink_that_does_not_run_acknowledges_nothing(orders: Store, tmp_path: Path, method: str) -> None:
    for function in WITH_GENERATORS.values():
        for is_part in (False, True):
            with pytest.raises(SinkConfigurationError, match=rf"{method}\(\) of sink Replaced"):
                sink: Any = Replaced(method, function, str(tmp_path))
                drain(orders, "orders", CompositeSink([("a", sink)]) if is_part else sink, sink_name="it")
            assert (waiting(orders), orders.dead_letters.count("orders")) == (1, 0)


MODULE = """
import functools
async def coroutine(*a, **k): ...
lazy = lambda *a, **k: coroutine()
class Codec:
    def __init__(self, **methods): self.__dict__.update(methods)
    def encode(self, value): return b"x"
    def decode(self, raw): return raw
encodes = Codec(encode=coroutine); decodes = Codec(decode=coroutine)
encodes_lazily = Codec(encode=lazy); decodes_lazily = Codec(decode=lazy)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's."""
    (tmp_path / "users_async.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "users_async"


def test_codecs_factories_and_secrets_that_do_not_run_are_refused(orders: Store, module: str, sqlite_url: str) -> None:
    for name in ("encodes", "decodes"):
        with pytest.raises(CodecError, match=r"code\(\) of codec .*: expected a plain function"):
            orders.configure_queue("other", value=f"{module}:{name}")
    orders.configure_queue("lazy", value=f"{module}:encodes_lazily")
    with pytest.raises(EntryError, match="has not run"), orders.transaction() as tx:
        tx.queue("lazy").add("anna", 1)
    orders.configure_table("lazier", value=f"{module}:decodes_lazily")
    with orders.transaction() as tx:
        tx.table("lazier").set("anna", "n", 1)
    with pytest.raises(CodecError, match="has not run"), orders.transaction(read_only=True) as tx:
        tx.table("lazier").get("anna", "n")
    for name in ("coroutine", "lazy"):
        with pytest.raises(SinkConfigurationError, match=r"expected a plain function|has not run"):
            SinkSpec(f"{module}:{name}").open()
        spec = SinkSpec("sql", {"url": sqlite_url}, {"password": f"{module}:{name}"})
        with pytest.raises(Exception, match=r"expected a plain function|has not run"):
            spec.open()


def test_callbacks_that_do_not_run_are_refused(orders: Store, tmp_path: Path) -> None:
    orders.observe("t", "n", lambda tx, row, column: None)
    orders.configure_queue("others")
    with orders.transaction() as tx:
        tx.queue("others").add("anna", {})
    for function in FORMS.values():
        asked: list[Callable[[], Any]] = [
            lambda f=function: orders.process_notifications(stop=f),
            lambda f=function: follow(orders, "orders", MemorySink(), stop=f),
            lambda f=function: drain(orders, "others", MemorySink("others"), on_progress=f),
            lambda f=function: orders.backup(tmp_path / "copy.db", on_progress=f),
            lambda f=function: Retry(sleep=f, attempts=2).call(_unlucky),
        ]
        for ask in asked:
            with pytest.raises(InvalidArgument, match=r"expected a plain function|has not run"):
                ask()
        assert not (tmp_path / "copy.db").exists()
    assert waiting(orders) == 1


def _unlucky() -> None:
    raise ConnectionError("once more")


def test_a_sleep_of_asyncio_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sleep: expected a plain function"):
        Retry(sleep=asyncio.sleep)  # type: ignore[arg-type]
