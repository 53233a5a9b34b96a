"""How long the long runs of the battery are: one number for every kind of history."""

from __future__ import annotations

import os

TRANSACTIONS = int(os.environ.get("EXPORT_QUEUE_BATTERY_TRANSACTIONS", "5000"))
"""Transactions of one kind of history, all ways of using a store together."""
HANGS = 7200
"""Seconds after which a run hangs for certain; a test of the count, not of speed."""
