"""Functions and sinks that are named on the command line."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.core.sinks import SinkSpec


def load_sink(path: Path) -> SinkSpec:
    """Read the description of a sink from a file: JSON with ``kind``, and perhaps ``options``, ``secrets``, ``name``.

    :raises InvalidArgument: the file cannot be read, or holds no JSON; what it holds is not shown.
    :raises SinkConfigurationError: it describes no sink.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InvalidArgument(f"{path}: expected JSON, the description of a sink") from None
    here = str(Path.cwd())
    if here not in sys.path:  # for sinks of the user's own
        sys.path.insert(0, here)
    try:
        return SinkSpec.from_dict(found)
    except SinkConfigurationError as error:
        raise SinkConfigurationError(f"{path}: {error.message}", hint=error.hint) from None


def load_function(target: str) -> Callable[..., Any]:
    """Find ``module:function``, in the current folder too.

    :raises InvalidArgument: there is no such module or function. An error inside of the module is raised as it is.
    """
    name, colon, attribute = target.partition(":")
    if not name or not colon or not attribute:
        raise InvalidArgument(f"expected MODULE:FUNCTION, found {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # a module that this one needs
        raise InvalidArgument(f"{target}: there is no module {error.name}, neither installed nor in {here}") from None
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        raise InvalidArgument(f"{target}: module {name} has no function {attribute}")
    return found
