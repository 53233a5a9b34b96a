"""A connection cut at any byte ends in the true answer or in ``CommitOutcomeUnknown``, and leaves nothing.

I3, I12, I14.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest
from tests.support.cuts import COMMITS, OTHERS, Cutter
from tests.support.proxy import Cut

from export_queue import Retry

How = Literal["reset", "close_half", "hold"]
BROKEN: tuple[How, ...] = ("reset", "close_half")
FEW = 3
SYNC = 8
"""At most so many of an exchange's last bytes end the statement, after the server has run it."""
MANY = 20
"""How many places of each way of an exchange are tried, beside its beginning and its end.

``EXPORT_QUEUE_CUTS`` sets another number; with a million every byte is tried, which takes hours.
"""

few_or_all = pytest.mark.parametrize(
    "places",
    [
        pytest.param(FEW, id="few", marks=pytest.mark.brief),
        pytest.param(
            int(os.environ.get("EXPORT_QUEUE_CUTS", MANY)),
            id="many",
            marks=[pytest.mark.full("many cuts of each exchange"), pytest.mark.timeout(1800)],
        ),
    ],
)

SOME_OR_ALL = [
    kind if kind in ("write_only", "long") else pytest.param(kind, marks=pytest.mark.full("it waits for time-outs"))
    for kind in COMMITS
]


@pytest.fixture
def cutter(postgres_url: str) -> Iterator[Cutter]:
    with Cutter.on(postgres_url) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that never come are waited for a moment only."""
    monkeypatch.setattr("export_queue.core.transactions.transaction.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("export_queue.core.transactions.outcomes.ASKING", Retry(attempts=None, seconds=5.0))


def cuts(
    cutter: Cutter, kind: str, hows: Sequence[How], places: int, *, timeout: float | None = None, warm: bool = True
) -> Iterator[Cut]:
    """Every byte in every way, or some of them, the first and the last always among them, each in one way."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for direction, size in cutter.sizes(kind, timeout=timeout, warm=warm).items():
        assert size > 0
        for after in sorted({0, size, *chosen.sample(range(size), min(places, size))}):
            for how in hows if places > MANY else [chosen.choice(hows)]:
                yield Cut(direction=direction, after=after, how=how)


@few_or_all
@pytest.mark.parametrize("kind", COMMITS)
def test_a_commit_cut_at_any_byte_is_answered_truthfully(cutter: Cutter, kind: str, places: int) -> None:
    attempts = []
    for cut in cuts(cutter, kind, BROKEN, places):
        attempt = cutter.attempt(kind, cut)
        # Others can be reached, so it is found out what happened.
        assert attempt.told != "unknown", (cut, attempt)
        assert cutter.proxy.wait_for_cut(1) or attempt.told == "committed", cut
        cutter.end_sessions()
        cutter.check(attempt)
        attempts.append(attempt)
    cutter.check_nothing_stays()
    for attempt in attempts:  # and stays true
        cutter.check(attempt)
    assert {"committed"} < {a.told for a in attempts} or kind == "run"


@pytest.mark.parametrize("kind", COMMITS)
@pytest.mark.usefixtures("impatient")
def test_a_network_that_swallows_all_that_is_connected_is_asked_anew(cutter: Cutter, kind: str) -> None:
    engine = cutter.store.database.engine
    for lent in [engine.connect() for _ in range(3)]:  # idle in the pool when the network fails
        lent.close()
    attempt = cutter.attempt(kind, None, timeout=0.3, before_commit=cutter.proxy.hold)
    # An idempotency key's retry has a connection again, and a long transaction stages before it commits.
    assert attempt.told == ("committed" if kind == "run" else "refused")
    errors = {"run": "NoneType", "long": "StoreUnavailable"}
    assert type(attempt.error).__name__ == errors.get(kind, "CommitRefused")
    cutter.check(attempt)
    cutter.proxy.deliver()
    cutter.end_sessions()
    cutter.check(attempt)
    cutter.check_nothing_stays()


@few_or_all
@pytest.mark.parametrize("kind", SOME_OR_ALL)
@pytest.mark.usefixtures("impatient")
def test_a_commit_that_gets_no_answer_ends_and_is_decided(cutter: Cutter, kind: str, places: int) -> None:
    """What was swallowed arrives after the client has asked, and changes nothing."""
    size = cutter.sizes(kind)["to_server"]
    for cut in cuts(cutter, kind, ["hold"], min(places // 4, 60), timeout=0.3):
        attempt = cutter.attempt(kind, cut, timeout=0.3)
        if attempt.told == "unknown":
            # The server has run the commit and waits for the word that ends it: nobody can know.
            assert cut.direction == "to_server", (cut, attempt)
            assert abs(size - cut.after) <= SYNC, (cut, attempt)
        else:
            cutter.check(attempt)
            status = cutter.direct.outcome(attempt.request or "").status
            assert status == ("committed" if attempt.told == "committed" else "refused")
        cutter.proxy.disarm()
        cutter.proxy.deliver()
        cutter.end_sessions()
        cutter.check(attempt)
    cutter.check_nothing_stays()


@few_or_all
@pytest.mark.parametrize("kind", OTHERS)
def test_a_cut_before_the_commit_leaves_nothing(cutter: Cutter, kind: str, places: int) -> None:
    for cut in cuts(cutter, kind, BROKEN, places, timeout=5):
        attempt = cutter.attempt(kind, cut, timeout=5)
        assert attempt.told == "refused"
        cutter.end_sessions()
    cutter.check_nothing_stays()
    assert cutter.truth.one("select count(*) from xq_cell") == len(COMMITS)


@few_or_all
@pytest.mark.full("each cut waits for a time-out; those of commits run anyway")
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.usefixtures("impatient")
def test_a_step_that_gets_no_answer_ends_and_leaves_nothing(cutter: Cutter, kind: str, places: int) -> None:
    for cut in cuts(cutter, kind, ["hold"], min(places // 4, 60), timeout=0.3):
        assert cutter.attempt(kind, cut, timeout=0.3).told == "refused"
        cutter.proxy.disarm()
        cutter.proxy.deliver()
        cutter.end_sessions()
    cutter.check_nothing_stays()
    assert cutter.truth.one("select count(*) from xq_cell") == len(COMMITS)


def test_a_cut_while_a_connection_is_made_has_sent_nothing(cutter: Cutter) -> None:
    for cut in cuts(cutter, "write_only", BROKEN, 12, warm=False):
        attempt = cutter.attempt("write_only", cut, warm=False)
        assert attempt.told != "unknown", (cut, attempt)
        cutter.end_sessions()
        cutter.check(attempt)
    cutter.check_nothing_stays()
