"""Progress of the demo: tasks note it in a file, the program shows it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import orjson
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo import settings

LINE_SECONDS = 5.0
"""How often a plain line tells of a step that goes on."""


def report(step: str, *, done: int, total: int, note: str = "") -> None:
    """Note how far a step is."""
    noted = {"at": time.time(), "step": step, "done": done, "total": total, "note": note}
    line = orjson.dumps(noted) + b"\n"
    with (settings.folder() / "progress").open("ab", buffering=0) as file:
        file.write(line)


@dataclass(slots=True)
class Display:
    """Shows progress: bars on a terminal, a plain line now and then elsewhere."""

    file: Path
    _read: int = 0
    _bars: Progress | None = None
    _tasks: dict[str, TaskID] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Display:
        if sys.stdout.isatty():
            columns = (TextColumn("    {task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, TextColumn("{task.fields[note]}"))
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.update()
        if self._bars is not None:
            self._bars.stop()

    def update(self) -> None:
        """Show what was noted since the last call."""
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._show(**orjson.loads(line))

    def _show(self, *, at: float, step: str, done: int, total: int, note: str) -> None:
        if self._bars is not None:
            if step not in self._tasks:
                self._tasks[step] = self._bars.add_task(step, total=total, note=note)
            self._bars.update(self._tasks[step], completed=done, total=total, note=note)
            return
        now = time.monotonic()
        if done >= total and self._told.get(step) == -1:
            return
        if done >= total or now - self._told.get(step, 0) > LINE_SECONDS:
            self._told[step] = -1 if done >= total else now
            what = f"{done:,} of {total:,}" if total > 1 else ("done" if done else note or "begins")
            print(f"    {step}: {what}" + (f", {note}" if note and total > 1 else ""), flush=True)
