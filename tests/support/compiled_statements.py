"""One cache of compiled SQL statements for all engines of a process.

Each test opens stores and sinks of its own, each with an engine that compiles the same statements again. That is up to
a quarter of the time of a test.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from functools import cache
from types import FunctionType
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache, generic_fn_descriptor

_SIZE = 4000
_SETTINGS = (bool, int, str, FunctionType)
"""Types of the attributes that are compared, such as whether a server has ``ANSI_QUOTES``."""
_CACHE: LRUCache[Any, Any] = LRUCache(_SIZE)


class SharedCache(MutableMapping[Any, Any]):
    """What an engine takes for a cache of its own; a key begins with the engine's dialect."""

    def __getitem__(self, key: Any) -> Any:
        return _CACHE[_common(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        _CACHE[_common(key)] = value

    def __delitem__(self, key: Any) -> None:
        del _CACHE[_common(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(_CACHE)

    def __len__(self) -> int:
        return len(_CACHE)


def _common(key: tuple[Any, ...]) -> Hashable:
    """Replace the dialect by what may decide how it compiles: its class, its server's version, and its settings."""
    dialect = key[0]
    derived = _derived(type(dialect))
    settings = frozenset(
        (name, value)
        for name, value in vars(dialect).items()
        if (value is None or isinstance(value, _SETTINGS)) and name not in derived
    )
    return (type(dialect), dialect.server_version_info, settings, *key[1:])


@cache
def _derived(dialect: type[Dialect]) -> frozenset[str]:
    """Names of what a dialect computes once it is asked for: they follow from the rest, and come at any time."""
    own = {name: value for kind in reversed(dialect.__mro__) for name, value in vars(kind).items()}
    return frozenset(name for name, value in own.items() if isinstance(value, generic_fn_descriptor | FunctionType))


def share_compiled_statements() -> None:
    """Give each engine that this process creates from now on the shared cache."""

    def engine_created(cls: type[Dialect], engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=SharedCache())

    Dialect.engine_created = classmethod(engine_created)  # type: ignore[assignment]
