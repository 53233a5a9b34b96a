"""The figures on the page about observers are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from export_queue import WaitingRows
from export_queue.core.observers import Processed
from export_queue.core.observers.failures import FIRST_MS, LONGEST_MS
from export_queue.core.observers.rounds import MOST_COUNTED, PAGE
from export_queue.core.observers.watching import MOST_READ
from export_queue.core.observers.worker import LONGEST_PAUSE
from export_queue.core.tables.observed import OBSERVED_SECONDS

PAGE_TEXT = (Path(__file__).parents[2] / "docs" / "observers.md").read_text()
WORDS = " ".join(PAGE_TEXT.split())


def test_the_page_about_observers_explains_every_count():
    table = PAGE_TEXT.partition("| it returns |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {one.name for one in fields(Processed)}


def test_the_page_about_observers_explains_every_field_of_waiting_rows():
    table = PAGE_TEXT.partition("| field | meaning |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {one.name for one in fields(WaitingRows)}


def test_the_page_about_observers_has_the_right_figures():
    assert f"at most every {OBSERVED_SECONDS:.0f} seconds" in WORDS
    assert f"as far as {MOST_COUNTED}" in WORDS
    assert f"the oldest {MOST_READ} notifications" in WORDS
    assert f"after up to {LONGEST_PAUSE * 1.5:.0f} seconds" in WORDS
    assert f"the oldest {PAGE} notifications" in WORDS
    assert f"after {FIRST_MS // 1000} s, then 2 s, 4 s … {LONGEST_MS // 60_000} min" in WORDS
