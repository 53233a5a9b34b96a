"""Every Python block of the page about DataFrames runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_every_python_block_of_the_page_runs(spark: Any, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        code = block.replace("sqlite:////var/lib/", f"sqlite:///{tmp_path}/").replace("spark.stop()", "")
        exec(compile(code, "docs/spark.md", "exec"), names)
