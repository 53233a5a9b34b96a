"""Functions that a call does not run: whatever form they have, they are refused, and nothing warns of them later."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import types
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from export_queue import InvalidArgument
from export_queue.core.callables import check_methods, check_runs, returned


async def coroutine(*_: Any) -> None: ...


async def async_generator(*_: Any) -> Any:
    yield 1


def generator(*_: Any) -> Iterator[int]:
    yield 1


@types.coroutine
def old_coroutine(*_: Any) -> Iterator[int]:
    yield 1


@contextlib.contextmanager
def context(*_: Any) -> Iterator[int]:
    yield 1


@contextlib.asynccontextmanager
async def async_context(*_: Any) -> Any:
    yield 1


class Called:
    async def __call__(self, *_: Any) -> None: ...

    async def method(self, *_: Any) -> None: ...

    @classmethod
    async def of_class(cls, *_: Any) -> None: ...

    @staticmethod
    async def of_nobody(*_: Any) -> None: ...


class Awaited:
    def __init__(self, *_: Any) -> None: ...

    def __await__(self) -> Generator[Any, None, None]:
        yield


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def plain(*arguments: Any) -> Any:
        return function(*arguments)

    return plain


def runs(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def plain(*arguments: Any) -> Any:
        return asyncio.run(function(*arguments))  # type: ignore[arg-type]

    return plain


KNOWN = {
    "async def": coroutine,
    "async generator": async_generator,
    "generator": generator,
    "old coroutine": old_coroutine,
    "partial": functools.partial(coroutine, 1),
    "partial of partial": functools.partial(functools.partial(coroutine), 1),
    "async call": Called(),
    "partial of async call": functools.partial(Called(), 1),
    "bound method": Called().method,
    "method of the class": Called.of_class,
    "static method": Called.of_nobody,
    "AsyncMock": AsyncMock(),
}
ONLY_CALLED = {
    "lambda": lambda *_: coroutine(),
    "decorated": decorated(coroutine),
    "decorated generator": decorated(generator),
    "cached": functools.lru_cache(coroutine),
    "context manager": context,
    "async context manager": async_context,
    "map": lambda *_: map(str, [1]),
    "awaitable object": Awaited,
    "list": lambda *_: [1, coroutine(), coroutine()],
    "tuple": lambda *_: (async_generator(), coroutine()),
    "set": lambda *_: {coroutine()},
    "values of a dict": lambda *_: {"a": 1, "b": generator()},
}
FINE = {
    "function": lambda *_: None,
    "a function that runs a coroutine": runs(coroutine),
    "MagicMock": MagicMock(),
    "class": dict,
    "ended generator": lambda *_: _ended(),
    "list of functions and what has run": lambda *_: [coroutine, 1, {}, _ended()],
    "builtin": print,
}


def _ended() -> Iterator[int]:
    found = generator()
    list(found)
    return found


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in seen if "never awaited" in str(one.message)] == []


@pytest.mark.parametrize("name", KNOWN)
def test_a_function_that_is_known_not_to_run_is_refused_before_it_is_called(name: str) -> None:
    with pytest.raises(InvalidArgument, match="observer: expected a plain function, found an? .*: calling it runs not"):
        check_runs(KNOWN[name], "observer")


@pytest.mark.parametrize("name", [*KNOWN, *ONLY_CALLED])
def test_a_result_that_has_not_run_is_refused_and_closed(name: str) -> None:
    function: Any = {**KNOWN, **ONLY_CALLED}[name]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="observer returned an? .* which has not run"):
            returned(function(), "observer")


@pytest.mark.parametrize("name", FINE)
def test_a_function_that_runs_is_taken(name: str) -> None:
    check_runs(FINE[name], "observer")
    returned(FINE[name](), "observer")  # type: ignore[operator]


def test_a_task_that_nobody_awaits_is_cancelled() -> None:
    ran: list[int] = []

    async def late() -> None:
        ran.append(1)

    async def outer() -> None:
        with pytest.raises(InvalidArgument, match="an awaitable Task"):
            returned(asyncio.get_running_loop().create_task(late()), "observer")
        await asyncio.sleep(0)

    asyncio.run(outer())
    assert ran == []


def test_a_generator_is_fine_where_it_is_read() -> None:
    for function in (generator, decorated(generator), lambda: map(str, [1])):
        check_runs(function, "exporter", may_yield=True)
        assert list(returned(function(), "exporter", may_yield=True))
    for refused in (coroutine, async_generator):
        with pytest.raises(InvalidArgument):
            check_runs(refused, "exporter", may_yield=True)
    for refused in (old_coroutine, context, async_generator):
        with pytest.raises(InvalidArgument):
            returned(refused(), "exporter", may_yield=True)


def test_methods_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"method\(\) of the thing: expected a plain function, found an async"):
        check_methods(Called(), ["absent", "method"], "the thing")
