"""Pages as HTML, with the headers that every answer has.

Everything that a store contains is foreign text: Jinja escapes it, and control characters are made visible.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from export_queue.core.drain import grouped
from export_queue.core.printable import printable
from export_queue.core.queue import DeadLetter, Pending
from export_queue.links import address
from export_queue.page.figures import COUNTED, Reader

HEADERS = {
    # no script at all, and no frame but that of Airflow's own menu
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
VALUE_CHARACTERS = 20_000
REASON_CHARACTERS = 300


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page.

    :param template: its name, without ``.html``.
    :param values: what the template uses.
    """
    text = _environment.get_template(f"{template}.html").render(root=request.scope.get("root_path", ""), **values)
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def asset(name: str, media_type: str) -> Response:
    """Return a file that pages, or Airflow's menu, show."""
    return Response(_environment.get_template(name).render(), media_type=media_type, headers=HEADERS)


def _duration(seconds: float) -> str:
    for limit, size, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def _utc(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # a lease may be longer than the calendar
        return "after the year 9999" if milliseconds > 0 else "before the year 1"


def _entries(pending: Pending) -> str:
    return grouped(pending.entries) + ("+" if pending.is_more else "")


def _dead(reader: Reader) -> str:
    return f"{grouped(COUNTED)}+" if reader.dead > COUNTED else grouped(reader.dead)


def _cut(text: str, most: int = REASON_CHARACTERS) -> str:
    shown = text[:most]
    return printable(shown) + ("…" if len(text) > most else "")


def _key(letter: DeadLetter) -> str:
    key = letter.key
    return printable(key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key))


def _value(value: bytes) -> str:
    return _cut(value[:VALUE_CHARACTERS].decode("utf-8", "backslashreplace"), VALUE_CHARACTERS)


def _made() -> Environment:
    made = Environment(
        loader=PackageLoader("export_queue.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["link"] = address
    made.filters |= {
        "cut": _cut,
        "dead": _dead,
        "duration": _duration,
        "entries": _entries,
        "grouped": grouped,
        "key": _key,
        "printable": printable,
        "utc": _utc,
        "value": _value,
    }
    return made


_environment = _made()
