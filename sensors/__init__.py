"""Airflow sensors."""

from export_queue.sensors.export_queue import ExportQueueSensor

__all__ = ["ExportQueueSensor"]
