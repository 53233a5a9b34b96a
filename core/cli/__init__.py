"""The command line."""

from export_queue.core.cli.commands import main

__all__ = ["main"]
