"""What the tests need to know about a sink, and helpers to write them."""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from export_queue.core.sinks import ApplyResult, Sink
from export_queue.core.testing.conformance.histories import (
    Delivery,
    Record,
    expected,
    goes_back,
    operations_of,
    visible,
)

_names = itertools.count()
_run = secrets.token_hex(3)


class SinkTarget:
    """A sink under test. A subclass opens it, and reads it as its users do."""

    collections: ClassVar[tuple[str, str]] = ("conformance_a", "conformance_b")
    """Two collections that the sink accepts."""
    takes: ClassVar[Literal["bytes", "text", "json", "nothing"]] = "bytes"
    """Documents that the sink accepts: any bytes, UTF-8 text without NUL, or JSON objects like :meth:`document`
    returns. ``nothing``: it stores no documents, only that a record exists."""
    shared: ClassVar[bool] = True
    """Whether sinks that are opened in different processes write to the same target."""

    def make_sink(self) -> Sink:
        """Open the sink. Called several times, also in other processes; each call opens its own connection."""
        raise NotImplementedError

    def read_all(self) -> Mapping[Record, bytes]:
        """Read the target as its users do, without the sink: documents by collection and id."""
        raise NotImplementedError

    def record_id(self, name: bytes) -> bytes:
        """Turn a name into an id that the sink accepts. Different names give different ids."""
        return name

    def document(self, name: bytes, seq: int) -> bytes:
        """Return the document that a put of a record carries: a JSON object."""
        return b'{"of":"%s","seq":%d}' % (name.hex().encode(), seq)

    # Helpers of the tests.

    def delivery(self, name: str | bytes, seq: int, *, put: bool = True, collection: int = 0) -> Delivery:
        """Make a delivery to the record of a name."""
        raw = name.encode() if isinstance(name, str) else name
        document = self.document(raw, seq) if put else None
        return Delivery(self.collections[collection], self.record_id(raw), seq, document)

    def puts(self, documents: Sequence[bytes]) -> list[Delivery]:
        """Make a put of each document, each to its own record."""
        prefix = self.fresh()
        return [
            Delivery(self.collections[0], self.record_id(f"{prefix}{n}".encode()), 1, document)
            for n, document in enumerate(documents)
        ]

    def fresh(self) -> str:
        """Return a name that no test has used, so that no test must clean up."""
        return f"{_run}-{os.getpid()}-{next(_names)}-"

    @contextmanager
    def opened(self) -> Iterator[Sink]:
        """Open and admit the sink, and close it at the end."""
        sink = self.make_sink()
        try:
            sink.admit(queue_id="conformance", store_id="conformance", fence=1)
            yield sink
        finally:
            sink.close()

    def apply(self, sink: Sink, deliveries: Sequence[Delivery]) -> ApplyResult:
        """Apply one batch, and check that the counts add up."""
        result = sink.apply(operations_of(deliveries))
        assert result.written + result.stale + len(result.rejected) == len(deliveries), "I13: counts must add up"
        assert min(result.written, result.stale) >= 0
        return result

    def check(self, deliveries: Sequence[Delivery]) -> None:
        """Compare the target with the oracle."""
        found, wanted = visible(self.read_all(), deliveries), expected(deliveries)
        if self.takes == "nothing":
            assert set(found) == set(wanted)
        else:
            assert found == wanted

    def check_looks(self, looks: Sequence[Mapping[Record, bytes]], deliveries: Sequence[Delivery]) -> None:
        """Check that a reader saw no record go back.

        :param looks: the records, in the order of reading.
        """
        if self.takes == "nothing":
            return  # without documents a sequence cannot be seen
        for record in {d.record for d in deliveries}:
            own = [d for d in deliveries if d.record == record]
            assert goes_back([look.get(record) for look in looks], own) is None, record

    def generator(self) -> random.Random:
        """Return the random generator of a test, and print its seed."""
        seed = os.environ.get("EXPORT_QUEUE_SEED") or str(random.randrange(1 << 32))
        print(f"EXPORT_QUEUE_SEED={seed}")
        return random.Random(seed)

    def history(self, generator: random.Random, *, records: int, seqs: int) -> list[Delivery]:
        """Make puts and deletes of some records."""
        prefix = self.fresh()
        return [
            self.delivery(f"{prefix}{n}", seq, put=generator.random() < 0.7, collection=n % 2)
            for n in range(records)
            for seq in range(1, seqs + 1)
        ]
