"""The command line."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, name: str | None = None) -> None:
    """Run the command line. Ctrl-C, also while modules load, ends it with one line and status 130.

    :param arguments: by default those of this process.
    :param name: name of the program in its help; by default that of this process.
    """
    try:
        from export_queue.core.cli import program

        program.main(arguments, name=name)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
