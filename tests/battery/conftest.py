"""The ways of registering ids as a parameter, and the seed of what happens by chance."""

from __future__ import annotations

import os
import random

import pytest
from tests.battery.ways import WAYS, Way
from tests.conftest import VARIANT

MARKS = {
    "sqlite": [],
    "postgresql": [pytest.mark.postgres],
    "postgresql-mixed": [pytest.mark.postgres, VARIANT],
}


@pytest.fixture(params=[pytest.param(way, id=way.name, marks=MARKS[way.name]) for way in WAYS])
def way(request: pytest.FixtureRequest) -> Way:
    """Each way of registering ids."""
    found: Way = request.param
    return found


@pytest.fixture
def way_url(way: Way, request: pytest.FixtureRequest) -> str:
    """The URL of a store of that way, created and empty."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[way.database]
    url = str(request.getfixturevalue(fixture))
    way.create(url)
    return url


@pytest.fixture
def seed() -> int:
    """``EXPORT_QUEUE_SEED``, or one drawn anew."""
    found = int(os.environ.get("EXPORT_QUEUE_SEED", random.SystemRandom().randrange(10**6)))
    print(f"EXPORT_QUEUE_SEED={found}")
    return found
