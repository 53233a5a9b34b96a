"""Functions of users that this library calls: those that calling does not run are refused (pure).

Calling an ``async def`` function or a generator function runs none of its code. Its result would count as done.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, ParamSpec, TypeVar

from export_queue.core.errors import ExportQueueError, InvalidArgument

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_HINT = (
    "give a plain function; asyncio.run(...) inside of it runs a coroutine to its end, "
    "and await asyncio.to_thread(...) calls this library from async code"
)
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
"""Types of results that need no closer look, for functions that are called once an entry."""
_SEVERAL = frozenset((list, tuple, dict, set, frozenset))
_LAZY = frozenset((CoroutineType, AsyncGeneratorType, GeneratorType))


def check_runs(
    function: object, what: str, *, may_yield: bool = False, error: type[ExportQueueError] = InvalidArgument
) -> Callable[..., Any]:
    """Return a function, unless it is known not to run when it is called.

    Only calling tells it of some, such as a lambda that returns a coroutine: :func:`returned` refuses their results.

    :param function: the function, or another object that is called.
    :param what: names the function's part, for the error.
    :param may_yield: whether a generator function is fine, since what it yields is read.
    :param error: the class of the error.
    """
    if not callable(function):
        raise error(f"{what}: expected a function, found {type(function).__name__}")
    kind = _kind_of_function(function)
    if kind and not (may_yield and kind == "a generator function"):
        raise error(
            f"{what}: expected a plain function, found {kind}, {name_of(function)}: calling it runs nothing", hint=_HINT
        )
    return function


def check_methods(
    owner: object,
    methods: Iterable[str],
    what: str,
    *,
    may_yield: Iterable[str] = (),
    error: type[ExportQueueError] = InvalidArgument,
) -> None:
    """Refuse an object with a method that is known not to run when it is called; methods that it lacks are left alone.

    :param methods: names of the methods that are called.
    :param may_yield: those that may be generators.
    """
    for method in methods:
        function = getattr(owner, method, None)
        if function is not None:
            check_runs(function, f"{method}() of {what}", may_yield=method in may_yield, error=error)


def returned(
    result: Result, what: str, *, may_yield: bool = False, error: type[ExportQueueError] = InvalidArgument
) -> Result:
    """Return what a function of a user returned, unless it shows that the function has not run.

    :param result: what was returned; it is closed if it is refused.
    :param what: names the function's part, for the error.
    :param may_yield: whether a generator is fine, since what it yields is read.
    :param error: the class of the error.
    """
    kind = type(result)
    if kind in _PLAIN or (may_yield and kind is GeneratorType and not _is_old_coroutine(result)):
        return result
    found = _kind_of_result(result)
    if not found or (may_yield and found in ("a generator", "a map", "a filter")):
        return result
    for one in _members(result):
        _discard(one)
    raise error(f"{what} returned {found}, which has not run", hint=_HINT)


def checked(function: Callable[Arguments, Result], what: str) -> Callable[Arguments, Result]:
    """Return a callback that raises an error at the call, where its result shows that it has not run.

    :param function: the callback; one that is known not to run is refused here.
    :param what: names its part, for the error.
    """
    check_runs(function, what)

    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return returned(function(*arguments, **named), what)

    return call


def name_of(function: object) -> str:
    """Name a function for people."""
    function = _innermost(function)
    return getattr(function, "__qualname__", None) or repr(function)


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _kind_of_function(function: object) -> str:
    """Say what a function is that does not run when it is called; empty where that is not known."""
    found = _innermost(function)
    ways = [found]
    if not inspect.isroutine(found) and not isinstance(found, type):
        ways.append(getattr(type(found), "__call__", None))  # noqa: B004
    for way in ways:
        if inspect.iscoroutinefunction(way):
            return "an async function"
        if inspect.isasyncgenfunction(way):
            return "an async generator function"
        if inspect.isgeneratorfunction(way):
            return "a generator function"
    return ""


def _kind_of_result(result: Any) -> str:
    """Say what a result is that shows that its function has not run; empty for every other one."""
    if type(result) in _SEVERAL:
        if _LAZY.isdisjoint(map(type, _members(result))):
            return ""
        found = next(filter(None, (_kind_of_result(one) for one in _members(result) if type(one) in _LAZY)), "")
        return found and f"a {type(result).__name__} with {found}"
    if inspect.iscoroutine(result):
        return "a coroutine"
    if inspect.isasyncgen(result):
        return "an async generator"
    if isinstance(result, GeneratorType):
        if _is_old_coroutine(result):
            return "a coroutine"
        return "a generator" if inspect.getgeneratorstate(result) == inspect.GEN_CREATED else ""
    if isinstance(result, map | filter):
        return f"a {type(result).__name__}"
    if isinstance(result, contextlib._GeneratorContextManager | contextlib._AsyncGeneratorContextManager):
        return "a context manager that nobody has entered" if _kind_of_result(result.gen) else ""
    if inspect.isawaitable(result):
        return f"an awaitable {type(result).__name__}"
    return ""


def _members(result: Any) -> Collection[Any]:
    """Return what is in a list, or another result of several; any other result stands for itself."""
    if type(result) not in _SEVERAL:
        return (result,)
    return result.values() if isinstance(result, dict) else result


def _is_old_coroutine(generator: Any) -> bool:
    """Tell whether a generator is of a function that ``types.coroutine`` has decorated."""
    return bool(generator.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _discard(result: Any) -> None:
    """End what nobody will run, so that nothing of it happens later and no warning says that it was forgotten."""
    if inspect.iscoroutine(result) or isinstance(result, GeneratorType):
        result.close()
    elif isinstance(result, contextlib._GeneratorContextManager):
        result.gen.close()
    else:
        cancel: Callable[[], object] | None = getattr(result, "cancel", None)  # of a task or a future
        if callable(cancel):
            cancel()
