"""Exporters, which turn entries into operations: finding and calling the user's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, Protocol

from export_queue.core.callables import check_methods, check_runs, returned
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import ExporterError, text_of
from export_queue.core.interruptions import raised_by_handler
from export_queue.core.queue import Entries, Queue
from export_queue.core.references import import_object
from export_queue.core.retry import Retry, is_transient
from export_queue.core.sinks import Delete, Operations, OperationsBuilder, Put


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed entry with decoded key and value, as an exporter receives it.

    :param queue: id of the queue.
    :param key: the key as it was added.
    :param value: the value as it was added; None for null.
    :param seq: id of the transaction that added it.
    """

    queue: str
    key: Any
    value: Any
    seq: int


Export = Callable[[Entry], Iterable[Put | Delete]]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why one entry is refused, in the words of the exporter or the sink."""

    reason: str
    error_class: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(text_of(error), name)


@dataclass(frozen=True, slots=True)
class Exported:
    """The operations of a chunk, and the entries that failed."""

    operations: Operations
    failures: dict[int, Failure] = field(default_factory=dict)
    """By position of the entry in its chunk."""


COPY = "default"
"""Name of the exporter that copies key and value."""


class Exporter(Protocol):
    """Turns chunks of entries into operations. It is opened before the first chunk and closed after the last."""

    name: str
    identity: str
    """What a reader is bound to: an import path, or ``<…>`` if no path leads to the object."""

    def open(self) -> None:
        """Prepare the exporter."""

    def export(self, queue: Queue, entries: Entries) -> Exported:
        """Turn a chunk into operations. Transient errors are raised; others are failures of their entry."""

    def close(self) -> None:
        """Free the resources that ``open`` took."""


class CopyExporter:
    """The default exporter: each entry is one record.

    Collection = the id of the queue, also if one of its subscriptions is drained; record id = the bytes of the key;
    document = the bytes of the value; null deletes the record.
    """

    name = identity = COPY

    def open(self) -> None:
        """Do nothing."""

    def export(self, queue: Queue, entries: Entries) -> Exported:
        """Return the columns unchanged."""
        count = len(entries)
        return Exported(Operations([queue.source] * count, entries.keys, entries.values, entries.seqs, range(count)))

    def close(self) -> None:
        """Do nothing."""


class _NotRun(ExporterError):
    """The result of an exporter shows that it did not run."""


class FunctionExporter:
    """A user's ``export(entry)``, as a function or as a method of an object.

    If it fails for an entry, it is called once more; the second error is the entry's failure.

    :param name: its name in messages.
    :param export: the function.
    :param owner: the object whose ``open`` and ``close``, if any, are called around the drain.
    :param identity: what a reader is bound to; by default the name.
    """

    def __init__(self, name: str, export: Export, owner: object = None, *, identity: str = "") -> None:
        self.name = name
        self.identity = identity or name
        self._export = export
        self._owner = owner

    def open(self) -> None:
        """Call the user's ``open``."""
        self._call("open")

    def export(self, queue: Queue, entries: Entries) -> Exported:
        """Call the user's function entry by entry."""
        queue.load_codecs()  # a codec that cannot be loaded is not the fault of the entries
        builder = OperationsBuilder()
        failures: dict[int, Failure] = {}
        for i, (key, value, seq) in enumerate(zip(entries.keys, entries.values, entries.seqs, strict=True)):
            for _ in range(2):
                try:
                    entry = Entry(queue.source, queue.decode_key(key), queue.decode_value(value, key=key), seq)
                    found = returned(self._export(entry), f"exporter {self.name}", may_yield=True, error=_NotRun)
                    builder.add(found, seq=seq, entry=i)
                except _NotRun as error:  # not the fault of the entry
                    raise ExporterError(error.message, hint=error.hint) from None
                except Exception as error:
                    if is_transient(error) or raised_by_handler(error) is not None:
                        raise
                    failures[i] = Failure.of(error)
                else:
                    failures.pop(i, None)
                    break
        return Exported(builder.build(), failures)

    def close(self) -> None:
        """Call the user's ``close``."""
        self._call("close")

    def _call(self, method: str) -> None:
        function = getattr(self._owner, method, None)
        if function is None:
            return
        try:
            result = function()
        except Exception as error:
            if is_transient(error) or raised_by_handler(error) is not None:
                raise
            raise ExporterError(f"{method}() of exporter {self.name} failed: {Failure.of(error)}") from error
        returned(result, f"{method}() of exporter {self.name}", error=ExporterError)


_HINT = "the module must be importable where the drain runs, also on Spark's executors"


def load_exporter(exporter: object | None) -> Exporter:
    """Find an exporter.

    :param exporter: ``"module:name"``, a function of one entry, an object with a method ``export(entry)`` and
        optionally ``open()`` and ``close()``, a class of such objects, or None to copy key and value.
    :returns: the exporter, not yet open.
    :raises ExporterError: the path leads to nothing, or to an object of another kind.
    """
    if exporter is None:
        return CopyExporter()
    name = exporter if isinstance(exporter, str) else _name_of(exporter)
    identity = name if isinstance(exporter, str) else _identity(exporter, name)
    found = import_object(exporter, error=ExporterError, hint=_HINT) if isinstance(exporter, str) else exporter
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ExporterError(f"exporter {name} cannot be created: {error}") from error
    method = getattr(found, "export", None)
    if callable(method):
        check_methods(found, ("open", "export", "close"), f"exporter {name}", may_yield=["export"], error=ExporterError)
        return FunctionExporter(name, method, found, identity=identity)
    if callable(found):
        check_runs(found, f"exporter {name}", may_yield=True, error=ExporterError)
        return FunctionExporter(name, found, identity=identity)
    raise ExporterError(
        f"exporter {name} is a {type(found).__name__}: expected a function, or an object with export(entry)"
    )


@contextlib.contextmanager
def opened_exporter(exporter: Exporter, retry: Retry) -> Iterator[Exporter]:
    call_again(retry, exporter.open, whom="the exporter")
    try:
        yield exporter
    finally:
        exporter.close()


def _identity(exporter: object, name: str) -> str:
    """Return what a reader is bound to: the import path of the exporter, or a name in angle brackets.

    The arguments of an object are not known, except those of a ``functools.partial``.
    """
    if isinstance(exporter, partial):
        arguments = [*map(repr, exporter.args), *(f"{key}={value!r}" for key, value in exporter.keywords.items())]
        shown = re.sub(" at 0x[0-9a-f]+", "", ", ".join(arguments))  # addresses differ between processes
        return f"<{_identity(exporter.func, _name_of(exporter.func))}({shown})>"
    is_of_an_object = isinstance(exporter, MethodType) and not isinstance(exporter.__self__, type)
    if is_of_an_object or name.startswith("__main__:") or not hasattr(exporter, "__qualname__"):
        return f"<{name}>"
    return name


def _name_of(exporter: object) -> str:
    kind = exporter if hasattr(exporter, "__qualname__") else type(exporter)
    return f"{kind.__module__}:{getattr(kind, '__qualname__', kind)}"
