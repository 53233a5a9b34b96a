"""A ``spark-submit`` of tests that need no Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class FakeSpark:
    """A folder with ``bin/spark-submit`` that remembers how it was called.

    :param folder: is made.
    :param program: what ``spark-submit`` does, with ``{python}`` and ``{folder}`` in it.
    :param mode: the first one.
    """

    def __init__(self, folder: Path, program: str, mode: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        path = folder / "bin" / "spark-submit"
        path.write_text(program.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
        self.mode(mode)

    def mode(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
