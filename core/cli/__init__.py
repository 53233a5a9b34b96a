"""The command line."""

from export_queue.core.cli import letters as _letters  # noqa: F401  (adds its commands)
from export_queue.core.cli import maintenance as _maintenance  # noqa: F401
from export_queue.core.cli import sweeping as _sweeping  # noqa: F401
from export_queue.core.cli.commands import main

__all__ = ["main"]
