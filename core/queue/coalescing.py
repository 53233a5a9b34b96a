"""What a compaction makes of several entries of one key: all of them stay, the latest does, or a fold of them; pure.

=================  ==============================================================================================
``coalesce``       of the entries of a key that are merged
=================  ==============================================================================================
None               all stay
``latest``         the highest sequence stays, a null value as well
``old_new``        objects ``{"old": …, "new": …}``, each of which goes on where the one before it ends, become
                   one, from the first one's ``old`` to the last one's ``new``
``module:name``    a function of the user's makes one value of them
=================  ==============================================================================================

What stands for several has the highest of their sequences. A fold is given values by the queue's codec, in the order
of their sequences, None where a record is gone; it returns a value, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.codecs import Refused
from export_queue.core.errors import FoldError, InvalidArgument
from export_queue.core.references import import_object, is_import_path

LATEST = "latest"
_PAIR = frozenset({"old", "new"})
_PLAIN_CODECS = ("bytes", "int", "str")
"""Codecs of values that are no objects."""
_HINT = "the module must be importable where compactions run, on Spark's executors too"


def _always(_earlier: Any, _later: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fold:
    """A way to make one value of several of a key."""

    name: str
    combine: Callable[[Sequence[Any]], Any]
    """Of two values or more."""
    continues: Callable[[Any, Any], bool] = _always
    """Tells whether a value goes on where the one before it ends: what does not is folded with what comes later."""


def _pair(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping) and value.keys() == _PAIR:
        return value
    found = "null" if value is None else type(value).__name__
    found = f"an object with {len(value)} names" if isinstance(value, Mapping) else found
    raise Refused(f'expected an object {{"old": …, "new": …}}, found {found}')


def _goes_on(earlier: Any, later: Any) -> bool:
    # by their texts: 1, 1.0 and True are equal, and name different records
    return repr(_pair(earlier)["new"]) == repr(_pair(later)["old"])


def _from_first_to_last(values: Sequence[Any]) -> dict[str, Any]:
    return {"old": _pair(values[0])["old"], "new": _pair(values[-1])["new"]}


FOLDS: Mapping[str, Fold] = {"old_new": Fold("old_new", _from_first_to_last, _goes_on)}
"""The built-in folds."""


def is_fold(coalesce: str | None) -> bool:
    """Tell whether an option names a fold."""
    return coalesce is not None and coalesce != LATEST


def check_coalesce(coalesce: object, *, value: str) -> None:
    """Check an option before it is stored; what an import path leads to is looked for where it is used.

    :param coalesce: None, a name, or an import path.
    :param value: the queue's codec of values.
    :raises InvalidArgument: there is nothing of this name, or it does not suit the codec.
    """
    names = [LATEST, *FOLDS]
    if coalesce is None or coalesce == LATEST:
        return
    if not isinstance(coalesce, str) or (coalesce not in FOLDS and not is_import_path(coalesce)):
        raise InvalidArgument(
            f"coalesce: expected one of {names} or an import path 'module:function', found {coalesce!r}"
        )
    if coalesce in FOLDS and value in _PLAIN_CODECS:
        raise InvalidArgument(f"coalesce: {coalesce} folds JSON objects, found values of the codec {value!r}")


def find_fold(name: str) -> Fold:
    """Find a fold that is stored.

    :param name: of a built-in one, or an import path.
    :raises FoldError: the import path leads to no function.
    """
    if name in FOLDS:
        return FOLDS[name]
    found = import_object(name, error=FoldError, hint=_HINT)
    if not callable(found):
        raise FoldError(f"fold {name}: expected a function of a list of values, found {type(found).__name__}")
    return Fold(name, found)


@dataclass(frozen=True, slots=True)
class Folded:
    """What was made of neighbouring values of a key."""

    first: int
    """Position of the first of them."""
    last: int
    value: Any


def fold_values(values: Sequence[Any], fold: Fold) -> list[Folded]:
    """Fold the values of one key, in the order of their sequences; what stays alone is left out."""
    ends = [at for at in range(1, len(values)) if not fold.continues(values[at - 1], values[at])]
    runs = zip([0, *ends], [*ends, len(values)], strict=True)
    return [Folded(first, end - 1, fold.combine(values[first:end])) for first, end in runs if end - first > 1]
