"""Refuses functions of users that do not run when they are called.

Calling an ``async def`` function or a generator function runs none of its code, but would count as success.
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
"""Types of results that need no further check, for functions that are called once per entry."""
_SEVERAL = frozenset((list, tuple, dict, set, frozenset))
_LAZY = frozenset((CoroutineType, AsyncGeneratorType, GeneratorType))


def check_runs(
    function: object, what: str, *, may_yield: bool = False, error: type[ExportQueueError] = InvalidArgument
) -> Callable[..., Any]:
    """Return a function, or raise an error if it is not callable, or calling it does not run it.

    Some functions can only be recognized by their results, such as a lambda that returns a coroutine; see
    :func:`returned`.

    :param what: names the function in the error.
    :param may_yield: allow a generator function, because the caller reads its values.
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
    """Check methods of an object as :func:`check_runs` does; missing methods are ignored.

    :param may_yield: names of methods that may be generators.
    """
    for method in methods:
        function = getattr(owner, method, None)
        if function is not None:
            check_runs(function, f"{method}() of {what}", may_yield=method in may_yield, error=error)


def returned(
    result: Result, what: str, *, may_yield: bool = False, error: type[ExportQueueError] = InvalidArgument
) -> Result:
    """Return the result of a user's function, or raise an error if it shows that the function has not run.

    :param result: the result; it is closed if it is refused.
    :param what: names the function in the error.
    :param may_yield: allow a generator, because the caller reads its values.
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
    """Return a callback that checks the function and, at each call, its result."""
    check_runs(function, what)

    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return returned(function(*arguments, **named), what)

    return call


def name_of(function: object) -> str:
    """Return the name of a function, for messages."""
    function = _innermost(function)
    return getattr(function, "__qualname__", None) or repr(function)


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _kind_of_function(function: object) -> str:
    """Return the kind of a function that does not run when it is called, or empty text."""
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
    """Return the kind of a result that shows that its function has not run, or empty text."""
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
    """Return the members of a list or other collection; any other result is its only member."""
    if type(result) not in _SEVERAL:
        return (result,)
    return result.values() if isinstance(result, dict) else result


def _is_old_coroutine(generator: Any) -> bool:
    """Return whether a generator comes from a function with the decorator ``types.coroutine``."""
    return bool(generator.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _discard(result: Any) -> None:
    """Close a result that nobody will run, so that it does not run later and causes no warning."""
    if inspect.iscoroutine(result) or isinstance(result, GeneratorType):
        result.close()
    elif isinstance(result, contextlib._GeneratorContextManager):
        result.gen.close()
    else:
        cancel: Callable[[], object] | None = getattr(result, "cancel", None)  # of a task or a future
        if callable(cancel):
            cancel()
