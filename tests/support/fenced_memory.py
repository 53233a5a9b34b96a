"""The shortest true sink with the guard ``fence``: dictionaries of this process, and a test's say before and after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from export_queue import ApplyResult, Capabilities, Claim, Operations, apply_batch, refuse_seqs
from export_queue.core.sinks import ClaimedSink
from export_queue.core.sinks.guards import needs_higher_fence, overtaken_error


class FencedMemory:
    """Records without ranks, and the fences of units.

    :param before: called with each batch, outside of its transaction.
    :param after: the same, once it is applied.
    :param on_claim: called with the claims, before they stand.
    """

    def __init__(
        self,
        *,
        before: Callable[[Operations], Any] = lambda operations: None,
        after: Callable[[Operations], Any] = lambda operations: None,
        on_claim: Callable[[Sequence[Claim]], Any] = lambda claims: None,
        rows: int = 1000,
    ) -> None:
        self.capabilities = Capabilities(batch_rows=rows, batch_bytes=1 << 20, fenced=True)
        self.documents: dict[tuple[str, bytes], bytes] = {}
        self.fences: dict[str, int] = {}
        self.batches: list[Operations] = []
        self._lock = threading.Lock()
        self._before, self._after, self._on_claim = before, after, on_claim

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None: ...

    def claim(self, claims: Sequence[Claim]) -> Sequence[ClaimedSink]:
        self._on_claim(claims)
        with self._lock:
            raised = [claim for claim in claims if needs_higher_fence(self.fences.get(claim.unit), claim, "memory")]
            self.fences |= {claim.unit: claim.fence for claim in raised}
        return [self.under(claim) for claim in claims]

    def under(self, claim: Claim) -> ClaimedSink:
        return ClaimedSink(self, partial(self._apply, claim))

    def _apply(self, claim: Claim, operations: Operations) -> ApplyResult:
        self._before(operations)
        reasons: dict[int, str] = {}
        refuse_seqs(operations, reasons)

        def write(batch: Operations) -> ApplyResult:
            found = self.fences.get(claim.unit)
            if found != claim.fence:
                raise overtaken_error(found, claim, "memory")
            self.batches.append(batch)
            for collection, record, document in zip(batch.collections, batch.ids, batch.documents, strict=True):
                if document is None:
                    self.documents.pop((collection, record), None)
                else:
                    self.documents[collection, record] = document
            return ApplyResult(len(batch), 0)

        with self._lock:
            result = apply_batch(operations, reasons=reasons, write=write)
        self._after(operations)
        return result

    def records(self) -> dict[str, bytes]:
        """Return the documents of all collections, by id."""
        with self._lock:
            return {record.decode(): document for (_, record), document in self.documents.items()}

    def close(self) -> None: ...
