"""Parts of the example DAGs that pages quote: the text between ``# [START name]`` and ``# [END name]``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("dags_examples/[!_]*.py"))
_MARKED = re.compile(r"^ *# \[START (\w+)\]\n(.*?)^ *# \[END (\w+)\]\n", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"^ *# \[(?:START|END) \w+\]\n", re.MULTILINE)


def without_markers(text: str) -> str:
    """Return an example as somebody would write it."""
    return _MARKER.sub("", text)


def quotes_of(example: Path) -> dict[str, str]:
    """Return the marked parts of an example by their names, without indentation."""
    text = example.read_text("utf-8")
    found = _MARKED.findall(text)
    assert len(_MARKER.findall(text)) == 2 * len(found), f"{example.name}: a marker without its other half"
    assert all(start == end for start, _, end in found), f"{example.name}: START and END have different names"
    return {name: textwrap.dedent(part).strip("\n") + "\n" for name, part, _ in found}
