"""Every Python block of the pages about DataFrames runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "count"), [("spark.md", 6), ("mirror-a-dataframe.md", 3)])
def test_every_python_block_of_the_page_runs(spark: Any, tmp_path: Path, page: str, count: int) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    blocks = [block for block in blocks if "airflow.sdk" not in block]  # its example DAG runs elsewhere
    assert len(blocks) == count
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        code = block.replace("sqlite:////var/lib/", f"sqlite:///{tmp_path}/").replace("spark.stop()", "")
        exec(compile(code, f"docs/{page}", "exec"), names)
