"""Locks and requests as the store keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from export_queue.core.locks.rules import Area, Lock, Request


def text_of(members: frozenset[str] | None) -> str | None:
    """Write what a lock covers; None, which older code writes too, stands for all."""
    return None if members is None else json.dumps(sorted(members), separators=(",", ":"))


def lock_of(row: Mapping[str, Any]) -> Lock:
    """Read a row of a lock."""
    return Lock(
        area=Area(row["first_bucket"], row["end_bucket"], _members(row["segment"])),
        mode=row["mode"],
        priority=row["priority"],
        task=row["task"],
        attempt=row["attempt"],
        place=(row["fence"], row["first_bucket"]),
        lease_ms=row["lease_ms"],
        revoked=bool(row["revoked"]),
    )


def areas_text(areas: Iterable[Area]) -> str:
    """Write what a request asks for."""
    return json.dumps([[area.first, area.end, text_of(area.members)] for area in areas], separators=(",", ":"))


def request_of(row: Mapping[str, Any]) -> Request:
    """Read a row of a request."""
    return Request(
        areas=tuple(Area(first, end, _members(names)) for first, end, names in json.loads(row["areas"])),
        mode=row["mode"],
        priority=row["priority"],
        task=row["task"],
        attempt=row["attempt"],
        number=row["number"],
        until_ms=row["until_ms"],
    )


def _members(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(json.loads(text))
