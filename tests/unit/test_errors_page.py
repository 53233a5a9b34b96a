"""The page of errors has every public error, under its base class, and says whether it is transient."""

from __future__ import annotations

import re
from pathlib import Path

import export_queue
from export_queue import ExportQueueError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text("utf-8")
TABLE = PAGE.partition("<!-- errors -->")[2].partition("<!-- end -->")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()[2:]]
ERRORS = {
    name: kind
    for name in export_queue.__all__
    if isinstance(kind := getattr(export_queue, name), type) and issubclass(kind, Exception)
}
BASES = {name for name, kind in ERRORS.items() if any(other.__base__ is kind for other in ERRORS.values())}


def named(row: list[str]) -> str:
    return row[0].strip("`")


def test_every_public_error_has_one_row() -> None:
    assert sorted(map(named, ROWS)) == sorted(ERRORS)


def test_every_row_says_what_happened_what_to_do_and_whether_a_retry_may_help() -> None:
    for error, happened, remedy, retry in ROWS:
        name = error.strip("`")
        assert happened, name
        assert remedy, name
        expected = "yes" if ERRORS[name].transient else "no"
        assert retry == ("" if name in BASES else expected), name


def test_errors_stand_under_their_base_class_in_the_order_of_their_names() -> None:
    group: list[str] = []
    groups = [group]
    for name in map(named, ROWS):
        if name in BASES and ERRORS[name] is not ExportQueueError:
            groups.append(group := [])
        group.append(name)
    for base, *members in groups:
        assert [ERRORS[name].__base__ for name in members] == [ERRORS[base]] * len(members)
        assert members == sorted(members)
    assert [base for base, *_ in groups[1:]] == sorted(BASES - {"ExportQueueError"})


def test_no_base_class_is_transient() -> None:
    assert not any(ERRORS[name].transient for name in BASES)


def test_a_row_names_a_command_of_the_hint_or_leads_to_a_page() -> None:
    for error, _, remedy, _ in ROWS:
        hint = ERRORS[error.strip("`")].default_hint
        commands = set(re.findall(r"export-queue ([a-z-]+)", hint))
        if commands and "](" not in remedy:
            assert commands & set(re.findall(r"export-queue ([a-z-]+)", remedy)), error
