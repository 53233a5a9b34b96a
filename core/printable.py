"""Makes foreign text safe to show on a terminal or in a line of a log."""

from __future__ import annotations

import logging


def printable(value: object) -> str:
    """Return a value as one line of text, with control characters escaped, because a terminal would obey them."""
    if value is None:
        return ""
    text = str(value)
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class PrintableLines(logging.Formatter):
    """Formats a log record as one printable line, followed by printable lines for its error."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        """Format the error."""
        return "\n".join(map(printable, super().formatException(ei).split("\n")))  # type: ignore[arg-type]
