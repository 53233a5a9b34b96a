"""The map in CONTRIBUTING is the one that the import contracts hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_the_rooms_stand_in_the_order_of_the_import_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = [one["layers"] for one in settings["contracts"] if one.get("containers") == ["export_queue.core"]]
    table = PAGE.partition("| room | job |")[2].partition("\n\n")[0]
    shown = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert shown == [name.strip(" ()") for layer in reversed(layers) for name in re.split(r"[|:]", layer)]
