"""What an index of the sink looks like, and whether one that is there can hold the guarantees (pure).

============================  ==============================================================================
name                          is
============================  ==============================================================================
the user's, such as           an alias of one index, with a filter that hides tombstones; readers and this
``orders``                    sink use it
``orders-000001``             the index behind it, where the sink creates it
``xq_control``                an index with one document a queue: its control record; and one, ``*``, for all of them:
                              the stores that feed the cluster, its floor, as ``fence`` the milliseconds that the
                              slowest of all sinks waits for an answer, and which index stood behind each alias
============================  ==============================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.sinks import naming
from export_queue.core.sinks.control import ControlRecord, FloorRecord

RESERVED = "_xq"
"""The field of tombstones; no document of a user has it."""
CONTROL = "xq_control"
WHOLE_SINK = "*"
"""Stands for all queues; none is called so."""

_HIDDEN = {"bool": {"must_not": [{"term": {f"{RESERVED}.deleted": True}}]}}
_DURABLE = {"index": {"translog": {"durability": "request"}}}
_MAPPING = {"properties": {RESERVED: {"properties": {"seq": {"type": "long"}, "deleted": {"type": "boolean"}}}}}
_CONTROL_MAPPING = {
    "dynamic": "strict",
    "properties": {
        "store_id": {"type": "keyword"},
        "fence": {"type": "long"},
        "floor": {"type": "long"},
        "since": {"type": "long"},
        "indices": {"type": "object", "enabled": False},
        "lost": {"type": "object", "enabled": False},
    },
}

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")

Found = Mapping[str, Any]
"""What the server says of a name: by index its aliases, mappings and settings."""


def check_template(template: str) -> str:
    """Check a template of names.

    :returns: the template in its normal form.
    :raises SinkConfigurationError: another field than ``$collection``, or a name that no alias may have.
    """
    return naming.check_template(template, refuse_name, what="index")


def refuse_name(name: str) -> str | None:
    """Say why an alias cannot have a name."""
    if not _NAME.fullmatch(name):
        return f"index {name[:100]!r}: expected 1 to 200 of a-z, 0-9, _ . -, the first a letter or a digit"
    if name == CONTROL:
        return f"index {name!r} is the sink's own"
    return None


def fill_collections(template: str, collections: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Name the alias of each collection.

    :returns: the alias by collection, and why a collection is refused.
    """
    return naming.name_collections(template, collections, refuse_name)


def definition(alias: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the index behind an alias, and the body of the request that creates both."""
    body = {"settings": _DURABLE, "mappings": _MAPPING, "aliases": {alias: {"filter": _HIDDEN}}}
    return f"{alias}-000001", body


def control_definition() -> tuple[str, dict[str, Any]]:
    """Return the name of the index of control records, and the body of the request that creates it."""
    index = {**_DURABLE["index"], "hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}
    return CONTROL, {"settings": {"index": index}, "mappings": _CONTROL_MAPPING}


Request = tuple[str, str, Mapping[str, Any]]
"""Method, path and body of a request to the server."""


def creation(definition: tuple[str, Mapping[str, Any]]) -> Request:
    """Return the request that creates an index."""
    name, body = definition
    return "PUT", f"/{name}", body


def missing(alias: str, found: Found | None) -> list[Request]:
    """Return the requests that bring about what a name leads to, or what an index behind it lacks, where that may be.

    :param found: what the server says of the name; None where it is unknown.
    """
    if found is None:
        return [creation(definition(alias))]
    if alias in found or len(found) != 1 or any("data_stream" in index for index in found.values()):
        return []  # nothing that is added would mend it
    ((name, index),) = found.items()
    requests: list[Request] = []
    if RESERVED not in index.get("mappings", {}).get("properties", {}):
        requests.append(("PUT", f"/{name}/_mapping", _MAPPING))
    behind = index.get("aliases", {}).get(alias, {})
    if "filter" not in behind:
        requests.append(
            ("POST", "/_aliases", {"actions": [{"add": {"index": name, "alias": alias, **behind, "filter": _HIDDEN}}]})
        )
    return requests


def console(requests: Iterable[Request]) -> str:
    """Write requests as the console of Kibana takes them."""
    return "\n".join(f"{method} {path}\n{json.dumps(body, indent=2)}\n" for method, path, body in requests)


def misfits(alias: str, found: Found) -> list[str]:
    """Say what is wrong with what a name leads to; nothing if it can be a sink."""
    if any("data_stream" in index for index in found.values()):
        return ["it is a data stream: documents of one cannot be replaced"]
    if alias in found:
        return ["it is an index, not an alias: readers would see tombstones"]
    if len(found) != 1:
        return [f"it is an alias of {len(found)} indices: one record could lie in several of them"]
    ((name, index),) = found.items()
    settings, mappings = index.get("settings", {}).get("index", {}), index.get("mappings", {})
    behind = index.get("aliases", {}).get(alias, {})
    problems: list[str] = []
    if str(behind.get("is_write_index", True)).lower() == "false":
        problems.append(f"index {name} is not its write index")
    if not _hides_tombstones(behind.get("filter")):
        problems.append(
            f"its filter is {json.dumps(behind.get('filter'))}: expected {json.dumps(_HIDDEN)}, which hides tombstones"
            " and nothing else"
        )
    if routed := sorted(name for name in behind if name.endswith("routing")):
        problems.append(f"it has a routing ({', '.join(routed)}): deliveries by another name would miss its records")
    durability = str(settings.get("translog", {}).get("durability", "request"))
    if durability.lower() != "request":
        problems.append(f"index {name} acknowledges before it writes (index.translog.durability {durability})")
    problems += [
        f"index {name} has a pipeline ({pipeline} {settings[pipeline]}), which may change ids"
        for pipeline in ("default_pipeline", "final_pipeline")
        if settings.get(pipeline, "_none") != "_none"
    ]
    if settings.get("mode", "standard") not in ("standard", "lookup"):
        problems.append(f"index {name} has the mode {settings['mode']}, in which records cannot be replaced")
    fields = mappings.get("properties", {}).get(RESERVED, {}).get("properties", {})
    types = {field: fields.get(field, {}).get("type") for field in ("seq", "deleted")}
    if types != {"seq": "long", "deleted": "boolean"}:
        problems.append(f"index {name} does not map {RESERVED}.seq as long and {RESERVED}.deleted as boolean")
    if mappings.get("_routing", {}).get("required"):
        problems.append(f"index {name} wants a routing, which records do not have")
    return problems


def _hides_tombstones(found: Any) -> bool:
    """Tell whether a filter hides tombstones and nothing else, in any of the ways to write that."""
    try:
        ((kind, clauses),) = found.items()
        ((occurrence, unwanted),) = clauses.items()
        (clause,) = unwanted if isinstance(unwanted, list) else [unwanted]
        ((query, fields),) = clause.items()
        ((name, value),) = fields.items()
        ((option, value),) = value.items() if isinstance(value, dict) else [("value", value)]
    except (AttributeError, TypeError, ValueError):
        return False
    path = kind, occurrence, query, name, option, str(value).lower()
    return path == ("bool", "must_not", "term", f"{RESERVED}.deleted", "value", "true")


def read_control(source: Mapping[str, Any]) -> ControlRecord:
    """Read a control record from its document."""
    return ControlRecord(str(source["store_id"]), int(source["fence"]))


def read_since(source: Mapping[str, Any]) -> int:
    """Read from a control record's document the fence of the queue's first drain, or of its last readmission."""
    return int(source.get("since", 0))


def write_control(record: ControlRecord, since: int) -> dict[str, Any]:
    """Return the document of a control record.

    :param since: the fence of the queue's first drain, or of its last readmission.
    """
    return {"store_id": record.store_id, "fence": record.fence, "since": since}


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """What the record of the whole cluster holds."""

    floor: FloorRecord = field(default_factory=FloorRecord)
    longest_ms: int = 0
    """The longest timeout of all sinks, in milliseconds."""
    known: Mapping[str, str] = field(default_factory=dict)
    """The identity of the index behind each alias that was written to."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """By alias whose index was lost, the fence of the queue that was readmitted then."""


def read_whole(source: Mapping[str, Any]) -> WholeRecord:
    """Read the record of the whole cluster from its document."""
    floor = FloorRecord(frozenset(source["store_id"]), int(source["floor"]))
    return WholeRecord(floor, int(source["fence"]), source.get("indices", {}), source.get("lost", {}))


def write_whole(record: WholeRecord) -> dict[str, Any]:
    """Return the document of the record of the whole cluster."""
    return {
        "store_id": sorted(record.floor.stores),
        "fence": record.longest_ms,
        "floor": record.floor.floor,
        "indices": dict(record.known),
        "lost": dict(record.lost),
    }


def identity(found: Found) -> str:
    """Return what tells an index from all others, from one of its name that was made anew, and from its own snapshot.

    The server gives each index a random text when it is created, and another one when it is restored in its place.
    """
    ((_, index),) = found.items()
    settings = index["settings"]["index"]
    return "/".join(filter(None, (settings["uuid"], settings.get("history", {}).get("uuid"))))


def behind(template: str, found: Found) -> list[str]:
    """Name the indices behind the aliases that a template may name and that hide tombstones.

    :param template: of the aliases.
    :param found: what the server says of all names that look so.
    """
    return sorted(
        name
        for name, index in found.items()
        if any(
            may_name(template, alias) and f"{RESERVED}.deleted" in json.dumps(about.get("filter"))
            for alias, about in index.get("aliases", {}).items()
        )
    )


def may_name(template: str, alias: str) -> bool:
    """Tell whether a template may name an alias."""
    return re.fullmatch(naming.names_of(template), alias) is not None
