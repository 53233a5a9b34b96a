"""What the README promises: two commands, and the DAGs of an example that is run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.quotes import without_markers

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_has_exactly_the_two_commands() -> None:
    (console,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert [line.split("#")[0].strip() for line in console.splitlines()] == ["./run demo", "./run test"]


def test_the_last_dags_of_the_readme_are_those_of_the_example() -> None:
    """The first one is run by ``tests/airflow/test_docs.py``."""
    _, block = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "airflow" in block]
    example = (Path(__file__).parents[2] / "dags_examples" / "recount_and_publish.py").read_text()
    docstring, _, code = without_markers(example).partition('"""\n\n')
    assert docstring
    assert block == code, "all of it, with the names that it uses: the example is run by a test"
