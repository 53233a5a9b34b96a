"""The changelog: its newest version is the package's, and fragments have names that towncrier takes."""

from __future__ import annotations

import re
from pathlib import Path

from export_queue import __version__

ROOT = Path(__file__).parents[2]


def test_the_newest_version_of_the_changelog_is_that_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)[0] == __version__
    assert text.count("<!-- towncrier release notes start -->\n") == 1


def test_fragments_of_the_changelog_have_a_kind_and_a_text() -> None:
    for fragment in (ROOT / "changelog.d").iterdir():
        if fragment.name != "README.md":
            assert re.fullmatch(r"\+[a-z0-9-]+\.(added|changed|removed|fixed)\.md", fragment.name), fragment.name
            assert fragment.read_text("utf-8").strip(), fragment.name
