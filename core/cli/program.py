"""The whole program. Each module adds its commands when it is imported; the order here is the order of the help."""

from export_queue.core.cli import store as _store  # noqa: F401, I001
from export_queue.core.cli import doctor as _doctor  # noqa: F401
from export_queue.core.cli import status as _status  # noqa: F401
from export_queue.core.cli import queues as _queues  # noqa: F401
from export_queue.core.cli import drains as _drains  # noqa: F401
from export_queue.core.cli import verify as _verify  # noqa: F401
from export_queue.core.cli import entries as _entries  # noqa: F401
from export_queue.core.cli import states as _states  # noqa: F401
from export_queue.core.cli import tables as _tables  # noqa: F401
from export_queue.core.cli import transactions as _transactions  # noqa: F401
from export_queue.core.cli import observers as _observers  # noqa: F401
from export_queue.core.cli import rebuild as _rebuild  # noqa: F401
from export_queue.core.cli import dead_letters as _dead_letters  # noqa: F401
from export_queue.core.cli import maintenance as _maintenance  # noqa: F401
from export_queue.core.cli import sinks as _sinks  # noqa: F401
from export_queue.core.cli.console import app, main

__all__ = ["app", "main"]
