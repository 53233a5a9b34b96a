"""The page about drains explains the whole report."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from export_queue import DrainReport

PAGE = Path(__file__).parents[2] / "docs" / "drain-reports.md"


def test_the_page_about_drains_explains_every_field_of_the_report():
    table = PAGE.read_text("utf-8").partition("| field |")[2].partition("\n\n")[0]
    explained = set(re.findall(r"`(\w+)`", table))
    assert {f.name for f in fields(DrainReport)} - explained <= {"queue", "sink", "drain_id", "seconds"}
