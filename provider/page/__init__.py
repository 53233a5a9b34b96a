"""The page in Airflow's UI: queues, readers, drains and dead letters of the stores that the configuration names.

Only :mod:`export_queue.plugin` imports it, with the first request.
"""

from export_queue.page.app import create_app

__all__ = ["create_app"]
