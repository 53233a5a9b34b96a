"""What the figures were measured on, in a line for people."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.servers import find_postgres_programs


def describe_machine() -> str:
    """Say what the ratios may depend on: processor, flush to disk, versions."""
    return ", ".join(
        (
            f"{os.cpu_count()} × {_processor()}",
            f"a load of {os.getloadavg()[0]:.1f} at the start",
            f"a flush of {_flush_seconds() * 1e6:,.0f} µs",
            f"{platform.system()} {platform.release()}",
            f"Python {platform.python_version()}",
            f"SQLite {sqlite3.sqlite_version}",
            _postgres(),
        )
    )


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _flush_seconds() -> float:
    """Time what every durable commit ends with, in the folder where the benchmarks have their databases."""
    taken = []
    with tempfile.TemporaryFile() as file:
        for _ in range(100):
            file.write(b"x" * 4096)
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def _postgres() -> str:
    told = subprocess.run(
        [str(find_postgres_programs() / "postgres"), "--version"], capture_output=True, text=True, check=True
    )
    return "PostgreSQL " + told.stdout.split(")")[1].split()[0]
