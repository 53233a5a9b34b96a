"""One cache of compiled SQL statements for all engines of a process.

Each test opens stores and sinks of its own, each with an engine that compiles the same statements again. That is a
tenth of the time of most tests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from types import FunctionType
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

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
    settings = [item for item in vars(dialect).items() if item[1] is None or isinstance(item[1], _SETTINGS)]
    return (type(dialect), dialect.server_version_info, *settings, *key[1:])


def share_compiled_statements() -> None:
    """Give each engine that this process creates from now on the shared cache."""

    def engine_created(cls: type[Dialect], engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=SharedCache())

    Dialect.engine_created = classmethod(engine_created)  # type: ignore[assignment]
