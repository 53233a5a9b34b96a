"""The definition of an index of the sink, and whether an existing index can hold the guarantees (pure).

============================  ==============================================================================
name                          is
============================  ==============================================================================
the user's, such as           an alias of one index, with a filter that hides tombstones. Readers and this sink use
``orders``                    it
``orders-000001``             the index behind it, if the sink creates it
``xq_control``                an index with one control record per queue, and one document, ``*``, for all queues: the
                              stores that feed the cluster, its floor, as ``fence`` the longest timeout of all sinks
                              in milliseconds, and the index behind each alias
============================  ==============================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from export_queue.core.sinks import naming
from export_queue.core.sinks.control import ControlRecord, FloorRecord

RESERVED = "_xq"
"""The field of tombstones. No document of a user may have it."""
CONTROL = "xq_control"
WHOLE_SINK = "*"
"""Stands for all queues; no queue has this id."""

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
"""The server's description of a name: aliases, mappings and settings by index."""


def check_template(template: str) -> str:
    """Check a template of names, and return its normal form.

    :raises SinkConfigurationError: it has a field other than ``$collection``, or no alias can have the names.
    """
    return naming.check_template(template, refuse_name, what="index")


def refuse_name(name: str) -> str | None:
    """Return why an alias cannot have a name; None if it can."""
    if not _NAME.fullmatch(name):
        return f"index {name[:100]!r}: expected 1 to 200 of a-z, 0-9, _ . -, the first a letter or a digit"
    if name == CONTROL:
        return f"index {name!r} is the sink's own"
    return None


def fill_collections(template: str, collections: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the alias of each collection, and the reasons why collections are refused."""
    return naming.name_collections(template, collections, refuse_name)


def definition(alias: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the index behind an alias, and the body of the request that creates both."""
    body = {"settings": _DURABLE, "mappings": _MAPPING, "aliases": {alias: {"filter": _HIDDEN}}}
    return f"{alias}-000001", body


def control_definition() -> tuple[str, dict[str, Any]]:
    """Return the name of the index of control records, and the body of the request that creates it."""
    index = {**_DURABLE["index"], "hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}
    return CONTROL, {"settings": {"index": index}, "mappings": _CONTROL_MAPPING}


def control_path(queue_id: str) -> str:
    """Return the path of a queue's control record."""
    return f"/{CONTROL}/_doc/{quote(queue_id, safe='')}"


Request = tuple[str, str, Mapping[str, Any]]
"""Method, path and body of a request to the server."""


def creation(definition: tuple[str, Mapping[str, Any]]) -> Request:
    name, body = definition
    return "PUT", f"/{name}", body


def missing(alias: str, found: Found | None) -> list[Request]:
    """Return the requests that create an alias and its index, or add what the index lacks.

    :param found: the server's description of the alias; None if it does not exist.
    """
    if found is None:
        return [creation(definition(alias))]
    if alias in found or len(found) != 1 or any("data_stream" in index for index in found.values()):
        return []  # no addition can repair it
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
    """Write requests for Kibana's console."""
    return "\n".join(f"{method} {path}\n{json.dumps(body, indent=2)}\n" for method, path, body in requests)


def misfits(alias: str, found: Found) -> list[str]:
    """Return the reasons why the target of a name cannot be a sink."""
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
    """Return whether a filter, in any of its notations, hides tombstones and nothing else."""
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
    return ControlRecord(str(source["store_id"]), int(source["fence"]))


def read_since(source: Mapping[str, Any]) -> int:
    """Return the fence of a queue's first drain, or of its last readmission, from its control record."""
    return int(source.get("since", 0))


def write_control(record: ControlRecord, since: int) -> dict[str, Any]:
    """Return the document of a control record; see :func:`read_since`."""
    return {"store_id": record.store_id, "fence": record.fence, "since": since}


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """The record of the whole cluster."""

    floor: FloorRecord = field(default_factory=FloorRecord)
    longest_ms: int = 0
    """The longest timeout of all sinks, in milliseconds."""
    known: Mapping[str, str] = field(default_factory=dict)
    """The identity of the index behind each alias that was written to."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """By alias whose index was lost: the fence of the queue that was readmitted then."""


def read_whole(source: Mapping[str, Any] | None) -> WholeRecord:
    if source is None:
        return WholeRecord()
    floor = FloorRecord(frozenset(source["store_id"]), int(source["floor"]))
    return WholeRecord(floor, int(source["fence"]), source.get("indices", {}), source.get("lost", {}))


def write_whole(record: WholeRecord) -> dict[str, Any]:
    return {
        "store_id": sorted(record.floor.stores),
        "fence": record.longest_ms,
        "floor": record.floor.floor,
        "indices": dict(record.known),
        "lost": dict(record.lost),
    }


def identity(found: Found) -> str:
    """Return a text that differs for every index, also after it was created again or restored from a snapshot.

    The server gives each index a random text when it is created, and another one when it is restored.
    """
    ((_, index),) = found.items()
    settings = index["settings"]["index"]
    return "/".join(filter(None, (settings["uuid"], settings.get("history", {}).get("uuid"))))


def pointing(pointer: str, index: str, found: Found | None) -> Request:
    """Return the request that makes a pointer an alias of one index alone, in one step.

    :param found: the server's description of the pointer; None if it does not exist.
    """
    former = [{"remove": {"index": name, "alias": pointer}} for name in sorted(found or ()) if name != index]
    return "POST", "/_aliases", {"actions": [*former, {"add": {"index": index, "alias": pointer, "filter": _HIDDEN}}]}


def behind(template: str, found: Found) -> list[str]:
    """Return the indices behind aliases that match a template and hide tombstones.

    :param found: the server's description of all names that match the template.
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
    """Return whether a template may name an alias."""
    return re.fullmatch(naming.names_of(template), alias) is not None
