"""Airflow sensors."""

from export_queue.sensors.drained import ExportQueueDrainedSensor
from export_queue.sensors.export_queue import ExportQueueSensor
from export_queue.sensors.notification import ExportQueueNotificationSensor

__all__ = ["ExportQueueDrainedSensor", "ExportQueueNotificationSensor", "ExportQueueSensor"]
