"""The meaning of the server's answers: one table for items of bulk requests and for whole requests (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from export_queue.core.errors import SinkConfigurationError, SinkError, SinkRefused
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate


class Outcome(Enum):
    """The meaning of an answer that is no error. The meaning of an error is a :class:`Fate`."""

    WRITTEN = "written"
    STALE = "the record is as new already"
    TOO_LARGE = "the request is too large"


_ANSWERS = {
    (200, ""): Outcome.WRITTEN,
    (201, ""): Outcome.WRITTEN,
    (409, "version_conflict_engine_exception"): Outcome.STALE,
    (413, ""): Outcome.TOO_LARGE,
}

NO_ANSWER = "no answer"
ERRORS = ErrorTable(
    "Elasticsearch and OpenSearch",
    [
        ErrorRow(NO_ANSWER, Fate.LATER, "the cluster is not there or too slow, or the connection broke"),
        ErrorRow("429*", Fate.AGAIN, "the server has no room: only what it refused is sent again, after a pause"),
        ErrorRow("408*", Fate.LATER, "the server was too slow; try again"),
        ErrorRow("5*", Fate.LATER, "a shard is missing, or the server is not well; see its log"),
        ErrorRow(
            "429 cluster_block_exception",
            Fate.LATER,
            "the index has the block read_only_allow_delete, which a full disk or a person sets: free space, or remove "
            "the block; entries wait in the queue",
        ),
        ErrorRow(
            "403 cluster_block_exception",
            Fate.LATER,
            "the index or the cluster has a block, which a person or a program sets: remove it; entries wait in the "
            "queue",
        ),
        ErrorRow("400 index_closed_exception", Fate.LATER, "open the index; entries wait in the queue"),
        ErrorRow("404*", Fate.REFUSED, "the index or its alias is gone: the next drain says what was lost"),
        ErrorRow("401*", Fate.REFUSED, "check user and password, or the API key, of the sink's connection"),
        ErrorRow("403*", Fate.REFUSED, "grant the user the privileges that docs/sinks/elasticsearch.md lists"),
        ErrorRow("400 media_type_header_exception", Fate.CONFIGURATION, "this sink needs Elasticsearch 8 or 9"),
        ErrorRow("406*", Fate.CONFIGURATION, "this sink needs Elasticsearch 8 or 9"),
        ErrorRow("400*", Fate.REJECTED, "the server cannot take this document or id"),
        ErrorRow("*", Fate.REFUSED, "the server's own words say what it did not like"),
    ],
)
"""By status and type."""

OF_DOCUMENTS = frozenset(("document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception"))
"""Types of errors that only a document can cause. The target may cause the others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to one operation or to a whole request."""

    status: int
    type: str = ""
    reason: str = ""
    meaning: Outcome | Fate = field(init=False)

    def __post_init__(self) -> None:
        known = _ANSWERS.get((self.status, self.type)) or _ANSWERS.get((self.status, ""))
        object.__setattr__(self, "meaning", known or self._row().fate)

    def explain(self, target: str) -> SinkError | SinkConfigurationError:
        """Return the error to raise for an answer that no single operation has caused.

        :param target: the sink and what it wrote to, for the message.
        """
        row = self._row()
        return SinkRefused(f"{target}: {self}") if row.fate is Fate.REJECTED else row.error(f"{target}: {self}")

    def _row(self) -> ErrorRow:
        return ERRORS.find(f"{self.status} {self.type}".strip())

    def __str__(self) -> str:
        return ": ".join(filter(None, (f"{self.status} {self.type}".strip(), self.reason)))


DONE = Answer(200)
"""The answer to an operation that was written."""
_without_reason = cache(Answer)


def whole(status: int, body: object) -> Answer:
    """Read the answer to a whole request."""
    return _answer(status, body.get("error") if isinstance(body, dict) else None)


def items_of(body: Mapping[str, Any]) -> Sequence[Answer]:
    """Read the answers to the items of a bulk request. ``filter_path`` may have removed most of their fields.

    Of answers that cannot be read none is returned, so that their number is not that of the operations.
    """
    items = body.get("items") or []
    if not body.get("errors", True):
        return [DONE] * len(items)
    answers = []
    for item in items:
        answer = next(iter(item.values()), None) if isinstance(item, dict) else None
        if not isinstance(answer, dict) or not isinstance(answer.get("status"), int):
            return []
        answers.append(_answer(answer["status"], answer.get("error")))
    return answers


def _answer(status: int, error: object) -> Answer:
    if error is None:
        return _without_reason(status)
    if not isinstance(error, dict):
        return Answer(status, reason=str(error))
    reason = str(error.get("reason") or "")
    cause = error.get("caused_by")
    inner = str(cause.get("reason") or "") if isinstance(cause, dict) else ""
    if inner and inner not in reason:
        reason = f"{reason}: {inner}" if reason else inner
    kind = str(error.get("type") or "")
    return Answer(status, kind, reason) if reason else _without_reason(status, kind)
