"""The conformance tests of a sink with the guard ``fence``: only batches under the last claim of a unit are applied.

Use it like :class:`~export_queue.core.testing.SinkConformance`. The oracle is a dictionary: a batch under the present
claim of its unit is applied in the order of arrival; any other batch changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export_queue.core.errors import LeaseLost
from export_queue.core.sinks import ApplyResult, Claim, FencedSink
from export_queue.core.testing.conformance.fenced_races import FencedRaces
from export_queue.core.testing.conformance.histories import Delivery, Record, visible
from export_queue.core.testing.conformance.sink import SingleBatches

_fences = itertools.count(1000)


class FencedConformance(FencedRaces, SingleBatches):
    """Tests that every fenced sink must pass. A subclass opens the sink, and reads it as its users do."""

    claimed: Claim
    """The claim of :meth:`apply`."""

    @contextmanager
    def opened(self) -> Iterator[FencedSink]:  # type: ignore[override]
        """Open and admit the sink, claim a unit, and close the sink at the end."""
        with super().opened() as opened:
            sink = cast(FencedSink, opened)
            self.claimed = Claim(f"conformance/1/{self.fresh()}", next(_fences))
            sink.claim([self.claimed])
            yield sink

    def apply(self, sink: FencedSink, deliveries: Sequence[Delivery]) -> ApplyResult:  # type: ignore[override]
        return self.apply_under(sink, self.claimed, deliveries)

    def apply_under(self, sink: FencedSink, claim: Claim, deliveries: Sequence[Delivery]) -> ApplyResult:
        """Apply one batch under a claim, and check that the counts add up."""
        return super().apply(sink.under(claim), deliveries)

    def found(self, deliveries: Sequence[Delivery]) -> dict[Record, bytes]:
        """Read the records that deliveries concern."""
        return visible(self.read_all(), deliveries)

    def test_batches_count_only_under_the_standing_claim_of_their_unit(self) -> None:
        batches = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.booleans()), max_size=5)
        steps = st.tuples(st.integers(0, 1), st.integers(0, 3), st.none() | batches)
        with self.opened() as sink:

            @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(steps, min_size=1, max_size=12))
            def hold(plan: list[tuple[int, int, list[tuple[int, int, bool]] | None]]) -> None:
                prefix, fences = self.fresh(), {0: -1, 1: -1}
                expected: dict[Record, bytes] = {}
                touched: list[Delivery] = []
                for seq, (unit, fence, batch) in enumerate(plan):
                    claim = Claim(f"{prefix}{unit}", fence)
                    if batch is None:
                        with raises_if(fence < fences[unit]):
                            sink.claim([claim])
                        fences[unit] = max(fence, fences[unit])
                        continue
                    # falling sequences: only the order of the batches counts; each record is of one unit
                    new = [
                        self.delivery(f"{prefix}{unit}-{n}", 100 - seq, put=put, collection=c) for n, c, put in batch
                    ]
                    new = list({one.record: one for one in new}.values())
                    touched += new
                    with raises_if(bool(new) and fence != fences[unit]):
                        assert self.apply_under(sink, claim, new).written == len(new)
                    if fence == fences[unit]:
                        expected |= {one.record: one.document for one in new if one.document is not None}
                        expected = {
                            record: document
                            for record, document in expected.items()
                            if not any(one.record == record and one.document is None for one in new)
                        }
                    self.compare(touched, expected)

            hold()

    def compare(self, touched: Sequence[Delivery], expected: dict[Record, bytes]) -> None:
        """Compare the target with the expected records."""
        found = self.found(touched)
        assert set(found) == set(expected)
        assert self.takes == "nothing" or found == expected

    def test_a_batch_without_a_claim_is_refused(self) -> None:
        batch = [self.delivery(self.fresh(), 1)]
        with self.opened() as sink:
            assert sink.capabilities.fenced
            with pytest.raises(LeaseLost):
                self.apply_under(sink, Claim(f"{self.fresh()}nobody", 5), batch)
        assert not self.found(batch)

    def test_a_zombie_is_shut_out_as_a_whole(self) -> None:
        names = [self.fresh() for _ in range(6)]
        older, newer = ([self.delivery(name, seq) for name in names] for seq in (1, 2))
        with self.opened() as zombie, self.opened() as sink:
            unit = self.fresh()
            old, new = Claim(unit, 1 << 61), Claim(unit, (1 << 61) + 1)  # equal if read as doubles
            zombie.claim([old])
            assert self.apply_under(zombie, old, older).written == 6
            sink.claim([new])
            assert self.apply_under(sink, new, newer[:3]).written == 3
            with pytest.raises(LeaseLost, match="taken over"):
                zombie.claim([old])
            for late in (older, [self.delivery(names[0], 9, put=False)]):
                with pytest.raises(LeaseLost, match="taken over"):
                    self.apply_under(zombie, old, late)
            self.compare(older, {one.record: one.document or b"" for one in [*newer[:3], *older[3:]]})

    def test_a_lower_claim_is_refused_with_all_that_came_with_it(self) -> None:
        one, other = self.fresh(), self.fresh()
        batch = [self.delivery(one, 1)]
        with self.opened() as sink:
            sink.claim([Claim(one, 5), Claim(other, 7)])
            with pytest.raises(LeaseLost, match="taken over"):
                sink.claim([Claim(one, 6), Claim(other, 6)])
            sink.claim([Claim(one, 5), Claim(other, 7)])  # the same again: its answer may have been lost
            assert self.apply_under(sink, Claim(one, 5), batch).written == 1
        self.check(batch)

    def test_what_is_claimed_elsewhere_does_not_stop_other_units(self) -> None:
        one, other = self.fresh(), self.fresh()
        batches = [[self.delivery(name, 1)] for name in (one, other)]
        with self.opened() as sink:
            sink.claim([Claim(one, 5), Claim(other, 5)])
            sink.claim([Claim(other, 6)])
            assert self.apply_under(sink, Claim(one, 5), batches[0]).written == 1
            with pytest.raises(LeaseLost):
                self.apply_under(sink, Claim(other, 5), batches[1])
        self.check(batches[0])
        assert not self.found(batches[1])

    def test_a_batch_that_is_repeated_changes_nothing(self) -> None:
        name = self.fresh()
        batch = [self.delivery(f"{name}{n}", 3, put=n != 2) for n in range(4)]
        with self.opened() as sink:
            self.apply(sink, [self.delivery(f"{name}2", 2)])
            for _ in range(2):
                assert self.apply(sink, batch).written == 4
                self.check(batch)

    def test_a_delete_leaves_nothing_that_could_be_older(self) -> None:
        name = self.fresh()
        put, delete, again = self.delivery(name, 10), self.delivery(name, 20, put=False), self.delivery(name, 15)
        with self.opened() as sink:
            for one in (put, delete):
                assert self.apply(sink, [one]).written == 1
            assert not self.found([put])
            assert self.apply(sink, [again]).written == 1
        assert set(self.found([put])) == {put.record}


def raises_if(condition: bool) -> AbstractContextManager[object]:
    """Expect LeaseLost if the condition holds."""
    return pytest.raises(LeaseLost) if condition else nullcontext()
