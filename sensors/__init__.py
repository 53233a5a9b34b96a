"""Airflow sensors."""

from export_queue.sensors.export_queue import ExportQueueSensor
from export_queue.sensors.notification import ExportQueueNotificationSensor

__all__ = ["ExportQueueNotificationSensor", "ExportQueueSensor"]
