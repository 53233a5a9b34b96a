"""What the server's answers mean: one table for items of a bulk request and for whole requests (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from export_queue.core.errors import ExportQueueError, SinkConfigurationError, SinkRefused, SinkUnavailable


class Meaning(Enum):
    """What an answer says about an operation, or about all of a request."""

    WRITTEN = "written"
    STALE = "the record is as new already"
    BUSY = "the same again after a moment"
    POISON = "this operation can never be taken"
    TOO_LARGE = "the request is too large"
    UNAVAILABLE = "the server cannot take it now"
    REFUSED = "the target takes no writes"
    UNFIT = "the target cannot be a sink"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table."""

    status: int
    type: str | None
    """The type of the server's exception; None for any."""
    meaning: Meaning
    hint: str | None = None


_M = Meaning
RULES = (
    Rule(200, None, _M.WRITTEN),
    Rule(201, None, _M.WRITTEN),
    Rule(409, "version_conflict_engine_exception", _M.STALE),
    Rule(429, "cluster_block_exception", _M.REFUSED, "a disk is full: free space; entries wait in the queue"),
    Rule(429, None, _M.BUSY),
    Rule(403, "cluster_block_exception", _M.REFUSED, "take the block off the index or the cluster"),
    Rule(400, "index_closed_exception", _M.REFUSED, "open the index"),
    Rule(404, None, _M.REFUSED, "the index or its alias is gone: the next drain sets it up, where it may"),
    Rule(401, None, _M.REFUSED, "check user and password, or the API key, of the sink's connection"),
    Rule(403, None, _M.REFUSED, "grant the user the privileges that the page about sinks lists"),
    Rule(413, None, _M.TOO_LARGE),
    Rule(400, "media_type_header_exception", _M.UNFIT, "this sink needs Elasticsearch 8 or 9"),
    Rule(406, None, _M.UNFIT, "this sink needs Elasticsearch 8 or 9"),
    Rule(400, None, _M.POISON),
    Rule(408, None, _M.UNAVAILABLE),
)
"""The first row that fits counts; other answers from 500 on are ``UNAVAILABLE``, and anything else ``REFUSED``."""

_ERRORS: Mapping[Meaning, type[ExportQueueError]] = {
    _M.BUSY: SinkUnavailable,
    _M.UNAVAILABLE: SinkUnavailable,
    _M.UNFIT: SinkConfigurationError,
}

OF_DOCUMENTS = frozenset(("document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception"))
"""Types of refusals that can only be the document's fault; others may be the target's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered to one operation or request."""

    status: int
    type: str = ""
    reason: str = ""
    meaning: Meaning = field(init=False)
    hint: str | None = field(init=False)

    def __post_init__(self) -> None:
        rule = _rule_of(self.status, self.type)
        object.__setattr__(self, "meaning", rule.meaning)
        object.__setattr__(self, "hint", rule.hint)

    def explain(self, target: str) -> ExportQueueError:
        """Make an error of an answer that no operation can be blamed for.

        :param target: the sink and what it wrote to.
        """
        kind = _ERRORS.get(self.meaning, SinkRefused)
        return kind(f"{target}: {self}", hint=self.hint)

    def __str__(self) -> str:
        return ": ".join(filter(None, (f"{self.status} {self.type}".strip(), self.reason)))


def _rule_of(status: int, kind: str) -> Rule:
    for rule in RULES:
        if rule.status == status and rule.type in (None, kind):
            return rule
    return Rule(status, None, _M.UNAVAILABLE if status >= 500 else _M.REFUSED)


DONE = Answer(200)
"""To an operation that was written."""
_without_reason = cache(Answer)


def whole(status: int, body: object) -> Answer:
    """Read the answer to a whole request."""
    return _answer(status, body.get("error") if isinstance(body, dict) else None)


def items_of(body: Mapping[str, Any]) -> Sequence[Answer]:
    """Read the answers to the items of a bulk request, as few as ``filter_path`` leaves of them."""
    items = body.get("items", [])
    if not body.get("errors", True):
        return [DONE] * len(items)
    answers = []
    for item in items:
        (answer,) = item.values()
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
