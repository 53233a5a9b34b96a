"""Clean-up of the store and of tombstones in sinks, and metrics."""

from export_queue.core.maintenance.after_drains import maintain_if_due
from export_queue.core.maintenance.cleanup import MaintenanceReport, Patience, maintain, vacuum
from export_queue.core.maintenance.metrics import Metric, Sample, read_metrics, render
from export_queue.core.maintenance.tombstones import SafeFloor, SinkSweep, safe_floor, sweep_sink

__all__ = [
    "MaintenanceReport",
    "Metric",
    "Patience",
    "SafeFloor",
    "Sample",
    "SinkSweep",
    "maintain",
    "maintain_if_due",
    "read_metrics",
    "render",
    "safe_floor",
    "sweep_sink",
    "vacuum",
]
