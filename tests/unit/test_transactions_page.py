"""The figures on the page about transactions are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from export_queue import Level, Limits, Participant, Retry
from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.maintenance.cleanup import DAY
from export_queue.core.tables.options import ConflictLevel
from export_queue.core.transactions.idempotency import MAX_IDEMPOTENCY_KEY_BYTES
from export_queue.core.transactions.outcomes import ASK_SECONDS
from export_queue.core.transactions.transaction import ANSWER_SECONDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "transactions.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())


def test_the_page_about_transactions_has_the_right_figures():
    assert f"up to {MAX_KEY_BYTES} bytes" in WORDS
    assert f"An idempotency key is text of up to {MAX_IDEMPOTENCY_KEY_BYTES} bytes" in WORDS
    assert DAY == 24 * 3600
    assert (ANSWER_SECONDS, ASK_SECONDS) == (10, 20)
    assert "time-out and ten seconds more" in WORDS
    assert "for some 20 seconds" in WORDS


def test_the_page_about_transactions_has_the_defaults_of_retries_and_limits():
    retry, limits = Retry(), Limits()
    assert f"up to {retry.attempts} times; pauses are {retry.first_pause * 1000:.0f} ms" in WORDS
    assert f"… {retry.longest_pause:.0f} s," in WORDS
    assert (limits.short_seconds, limits.long_seconds) == (30, 24 * 3600)
    assert "30 seconds from its first read to its commit, a long one 24 hours" in WORDS
    assert (limits.max_short_seconds, limits.max_long_seconds) == (3600, 7 * 24 * 3600)
    assert "up to an hour, or seven days for a long one" in WORDS
    assert (limits.max_changes, limits.max_bytes) == (1_000_000, 256 << 20)
    assert "a million changes (cells, entries, conflict keys) or 256 MiB" in WORDS
    assert (limits.warn_changes * 10, limits.warn_bytes * 4) == (limits.max_changes, limits.max_bytes)


def test_the_page_about_transactions_explains_every_level_and_every_call_of_a_participant():
    assert set(
        re.findall(r"^\| `(SNAPSHOT\w*)`", (DOCS / "long-transactions.md").read_text("utf-8"), re.MULTILINE)
    ) == {level.name for level in Level}
    calls = {name for name in vars(Participant) if not name.startswith("_")}
    shown = (DOCS / "participants.md").read_text("utf-8").partition("class Report:")[2].partition("```")[0]
    assert set(re.findall(r"def (\w+)\(self", shown)) == calls
    assert set(re.findall(r'^\| `conflict="(\w+)"`', PAGE, re.MULTILINE)) == {level.value for level in ConflictLevel}
