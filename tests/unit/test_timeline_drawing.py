"""Pictures of timelines, and those of the pages."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.support.timelines import DOCS, ident, levels_example, pictures, seed_example, segment, stored_example

from export_queue.core.timeline import Timeline, draw, draw_svg

PAGE, SEGMENTS = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("timeline", "segments"))


@pytest.mark.parametrize("path", pictures(), ids=lambda path: path.name)
def test_a_picture_of_the_page_is_as_the_code_draws_it(path: Path) -> None:
    assert path.read_text("utf-8") == pictures()[path], "python -m tests.support.timelines draws it anew"
    assert f"]({path.name})" in PAGE + SEGMENTS


def test_the_texts_of_the_pages_are_as_the_code_draws_them() -> None:
    timeline = Timeline(seed_example().values())
    timeline.withdraw(ident(6))
    assert f"```text\n{draw(timeline, width=40)}\n```" in PAGE
    assert f"```text\n{draw(Timeline(stored_example()), width=40)}\n```" in PAGE


def test_each_segment_has_a_row_and_each_state_a_mark() -> None:
    drawn = draw(Timeline(levels_example()), width=50)
    assert drawn.splitlines() == [
        "bucket      0                                                 250",
        "v3 p0* 1.7                                ····················",
        "v2 p2 1.6             ████████████████████",
        "v2 p1* 1.5            ████████████████████",
        "v2 p0* 1.4            ████████████████████",
        "v1 p0 1.3                       ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
        "v1 p1 1.2   ██████████░░░░░░░░░░",
        "v1 p0 1.1   ██████████░░░░░░░░░░",
        "",
        "█ visible   ░ hidden   ▒ retired   · waits for missing members",
    ]


def test_a_segment_of_few_buckets_has_a_mark_too() -> None:
    timeline = Timeline([segment(1, 0, at=(0, 10_000)), segment(2, 0, at=(9_999, 10_000), version=2, founders=1)])
    assert draw(timeline, width=20).splitlines()[1] == f"v2 p0* 1.2  {'':19}█"


def test_no_segments_are_no_error() -> None:
    assert draw(Timeline()) == "no segments"
    assert ElementTree.fromstring(draw_svg(Timeline())).tag.endswith("svg")


def test_the_svg_is_well_formed_and_the_same_whatever_the_order() -> None:
    drawn = draw_svg(Timeline(levels_example()))
    ElementTree.fromstring(drawn)
    assert drawn == draw_svg(Timeline(reversed(levels_example())))
    assert drawn.count("<title>") == len(Timeline(levels_example()).parts())
