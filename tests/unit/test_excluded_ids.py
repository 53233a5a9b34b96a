"""The ids that a server's snapshots exclude for long, as a process goes on with them from snapshot to snapshot."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from export_queue.core.store.postgresql.excluded_ids import ExcludedIds, ServerMoment

MOMENT = ServerMoment(5, 9, (6, 8))
TABLE = b"\0\0\0\7"
ids = st.lists(st.integers(1, 30), max_size=20)


def as_of(listed):
    known = ExcludedIds("life").at(MOMENT, TABLE, listed, ())
    assert known is not None
    return known


@given(before=ids, after=ids, passing=ids, order=st.randoms(use_true_random=False))
def test_changes_in_any_order_lead_to_the_same_ids(before, after, passing, order):
    came, went = Counter(after) - Counter(before), Counter(before) - Counter(after)
    changes = [*came.elements(), *passing, *(-number for number in (*went.elements(), *passing))]
    order.shuffle(changes)
    known = as_of(before).at(MOMENT, TABLE, None, changes)
    assert known is not None
    assert known.ids == tuple(sorted(after))
    assert known.origin == "life"


def test_without_changes_the_ids_are_the_very_same():
    known = as_of([3, 1])
    later = known.at(MOMENT, TABLE, None, ())
    assert later is not None
    assert later.ids is known.ids


def test_changes_that_do_not_fit_lead_to_no_ids():
    assert as_of([3]).at(MOMENT, TABLE, None, [-3, 4, -5]) is None


def test_nothing_is_asked_for_changes_where_nothing_is_known():
    assert ExcludedIds("life").as_of() == (None,) * 6


def test_a_snapshot_is_read_as_the_server_sends_it():
    sent = bytes.fromhex("00000002 0000000000000005 0000000000000009 0000000000000006 0000000000000008")
    assert ServerMoment.unpack(sent) == MOMENT
