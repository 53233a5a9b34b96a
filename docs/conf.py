"""The documentation as a site: pages of ``docs/``, the README, and the docstrings of the public names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import export_queue

project = "Export Queue"
author = "the Export Queue maintainers"
project_copyright = author
release = version = export_queue.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxcontrib.mermaid"]
root_doc = "docs/index"
suppress_warnings = ["toc.not_included"]  # a test holds that the index leads to every page
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "changelog.d/README.md",
    "docs/**.md",
    "docs/**.rst",
]
myst_heading_anchors = 4  # as GitHub makes them
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Export Queue {version}"
html_copy_source = html_show_sourcelink = False
copybutton_prompt_text = "$ "

_LINK = re.compile(r"\]\(([\w/.-]+\.(?:md|rst))(?:#[^)]*)?\)")
_HEADING = re.compile(r"^## ", re.MULTILINE)


class PublicNames(SphinxDirective):
    """Describe the public names that come from some rooms of ``core``: ``.. public-names:: client transactions``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the descriptions."""
        rooms = self.arguments[0].split()
        homes = {name: export_queue._HOME.get(name, "errors") for name in export_queue.__all__}
        lines: list[str] = []
        for name in (name for room in rooms for name, home in homes.items() if home == room and name != "__version__"):
            kind = "class" if isinstance(getattr(export_queue, name), type) else "function"
            lines += [f".. auto{kind}:: export_queue.{name}", *(["   :members:"] if kind == "class" else []), ""]
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=f"public names of {rooms}"), self.content_offset, container)
        return container.children


def contents_of_index(app: Sphinx, document: str, text: list[str]) -> None:
    """Make the side bar from the tables of an index page: each heading with the pages that it links to."""
    if Path(document).name != "index" or not text[0].startswith("# "):
        return
    seen: set[str] = set()
    for part in _HEADING.split(text[0]) if "\n## " in text[0] else [text[0]]:
        pages = [page for page in dict.fromkeys(_LINK.findall(part)) if page not in seen]
        seen.update(pages)
        if pages:
            caption = part.splitlines()[0].removeprefix("# ").partition(":")[0]
            text[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def first_page(app: Sphinx, error: Exception | None) -> None:
    """Let the site's address lead to the index of the pages."""
    if error is None:
        target = f"{root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n'
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Add all of this to Sphinx."""
    app.add_directive("public-names", PublicNames)
    app.connect("source-read", contents_of_index)
    app.connect("build-finished", first_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
