"""Functions and sinks of the user's own that the command line loads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export_queue.core.callables import check_runs
from export_queue.core.errors import InvalidArgument
from export_queue.core.references import import_object


def search_current_folder() -> Path:
    """Let imports find modules in the current folder, and return it."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def load_function(target: str) -> Callable[..., Any]:
    """Find ``module:function``, in the current folder too.

    :raises InvalidArgument: the path leads to no function.
    """
    here = search_current_folder()
    hint = f"modules are looked for among what is installed and in {here}"
    found = import_object(target, error=InvalidArgument, hint=hint)
    return check_runs(found, target)
