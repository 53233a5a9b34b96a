"""Places of the demo's files; the program gives them to its processes by the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

INDEX_QUEUES = ("index.sql", "index.redis")
STATUS_QUEUES = ("status.sql", "status.redis")
QUEUES = (*INDEX_QUEUES, *STATUS_QUEUES)
"""A queue drains into one sink, so that each change goes to two queues, in the same transaction."""

INDEX_COLUMNS = {"flights": "integer", "aircraft": "text"}
STATUS_COLUMNS = {"aircraft": "text", "flights": "integer", "last": "json"}

FOLDER = "EXPORT_QUEUE_DEMO_FOLDER"


def folder() -> Path:
    """Return the folder of the demo's files."""
    return Path(os.environ[FOLDER])


def store_url() -> str:
    """Return the URL of the store, from the connection that Airflow uses."""
    return str(json.loads(os.environ["AIRFLOW_CONN_EXPORT_QUEUE_DEFAULT"])["host"])


def copies() -> Path:
    """Return the SQLite file that is one of the sinks."""
    return folder() / "copies.db"
