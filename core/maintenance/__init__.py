"""Clean-up, one bounded function a subject, and figures to watch."""

from export_queue.core.maintenance.cleanup import MaintenanceReport, Patience, maintain, vacuum
from export_queue.core.maintenance.metrics import read_metrics
from export_queue.core.maintenance.openmetrics import Metric, Sample, render
from export_queue.core.maintenance.tombstones import SafeFloor, SinkSweep, safe_floor, sweep_sink

__all__ = [
    "MaintenanceReport",
    "Metric",
    "Patience",
    "SafeFloor",
    "Sample",
    "SinkSweep",
    "maintain",
    "read_metrics",
    "render",
    "safe_floor",
    "sweep_sink",
    "vacuum",
]
