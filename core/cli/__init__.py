"""The command line."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C, also while modules load, ends it with one line and status 130."""
    try:
        from export_queue.core.cli import program

        program.main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
