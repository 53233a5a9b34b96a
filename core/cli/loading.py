"""Functions that are named on the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export_queue.core.errors import InvalidArgument


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
