"""The checks of `export-queue doctor`: what an installation needs, what it has, and how to repair it.

Everything is read in bounded steps, and nothing is changed. Each subject has a pure part, which judges, and a thin
part, which reads.
"""

from export_queue.core.doctor.check import Check, Level, checked
from export_queue.core.doctor.sinks import examine_sink, extras_of_sink
from export_queue.core.doctor.software import examine_software
from export_queue.core.doctor.store import examine_store

__all__ = ["Check", "Level", "checked", "examine_sink", "examine_software", "examine_store", "extras_of_sink"]
