"""The servers that all processes of a run share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.servers import PostgresServer
from tests.support.shared import VARIABLE, shared


def test_servers_that_were_stopped_during_a_run_are_no_servers_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``FileNotFoundError`` would skip every test of servers, and the run would be green."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(RuntimeError, match="have been stopped"):
        shared(PostgresServer, "of a run that is over")
