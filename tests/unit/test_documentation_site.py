"""The documentation site has every page and every public name; the page of examples has every example."""

import re
from pathlib import Path

import export_queue

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([\w/.-]+)(?:#[^)]*)?\)")


def links_of(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}


def test_the_index_leads_to_every_page() -> None:
    docs = ROOT / "docs"
    pages = {page for page in docs.rglob("*.md") if page.name != "index.md"} - set((docs / "decisions").iterdir())
    assert pages - links_of(docs / "index.md") - links_of(docs / "sinks" / "index.md") == set()
    assert set((docs / "decisions").glob("0*.md")) <= links_of(docs / "decisions" / "index.md")


def test_the_python_interface_describes_the_names_of_every_room() -> None:
    pages = [page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst")]
    described = " ".join(re.findall(r"^\.\. public-names:: (.*)$", "\n".join(pages), re.MULTILINE)).split()
    assert sorted(described) == sorted({*export_queue._ROOMS, "errors"})
    for name in export_queue._NEED_AIRFLOW:
        assert any(f":: export_queue.{name}\n" in page for page in pages)


def test_the_page_of_examples_has_every_example() -> None:
    examples = ROOT / "dags_examples"
    assert set(examples.glob("[!_]*.py")) == links_of(ROOT / "docs" / "examples.md")


def test_every_example_says_what_it_needs() -> None:
    dags = [file for file in (ROOT / "dags_examples").glob("*.py") if "\n@dag" in file.read_text()]
    assert [dag.name for dag in dags if "You need:" not in dag.read_text().split('"""')[1]] == []
