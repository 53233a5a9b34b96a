"""The timeline as a picture: one row a segment, the highest version on top; as text, and as SVG."""

from __future__ import annotations

from itertools import groupby

from export_queue.core.timeline.model import Part, State
from export_queue.core.timeline.timeline import Timeline

_MARKS: dict[State, str] = {"visible": "█", "hidden": "░", "retired": "▒", "waiting": "·"}
_MEANINGS: dict[State, str] = {
    "visible": "visible",
    "hidden": "hidden",
    "retired": "retired",
    "waiting": "waits for missing members",
}
_COLOURS: dict[State, str] = {"visible": "#2f7ebc", "hidden": "#c9d7e3", "retired": "#8d9b8a", "waiting": "#e8b96b"}
_ROW, _BAR, _LABELS, _WIDTH = 24, 16, 190, 640


def draw(timeline: Timeline, *, width: int = 60) -> str:
    """Draw a timeline as text.

    :param width: characters for all buckets.
    """
    rows = _rows(timeline)
    if not rows:
        return "no segments"
    first, end = _bounds(rows)
    labels = [_label(row) for row in rows]
    margin = max(map(len, labels)) + 2
    lines = [f"{'bucket':{margin}}{first:<{width}}{end}"]
    for label, row in zip(labels, rows, strict=True):
        bar = [" "] * width
        for part in row:
            begin = (part.first - first) * width // (end - first)
            stop = max((part.end - first) * width // (end - first), begin + 1)
            bar[begin:stop] = _MARKS[part.state] * (stop - begin)
        lines.append(f"{label:{margin}}{''.join(bar)}".rstrip())
    legend = "   ".join(f"{_MARKS[state]} {_MEANINGS[state]}" for state in _states(rows))
    return "\n".join([*lines, "", legend])


def draw_svg(timeline: Timeline) -> str:
    """Draw a timeline as an SVG document; the same segments give the same text."""
    rows = _rows(timeline)
    first, end = _bounds(rows) if rows else (0, 1)
    bars = []
    for number, row in enumerate(rows):
        top = _ROW * (number + 1)
        bars.append(f'<text x="8" y="{top + 13}">{_label(row)}</text>')
        for part in row:
            begin, stop = (_LABELS + (at - first) * _WIDTH // (end - first) for at in (part.first, part.end))
            bars.append(
                f'<rect x="{begin}" y="{top}" width="{max(stop - begin - 1, 1)}" height="{_BAR}" '
                f'fill="{_COLOURS[part.state]}"><title>[{part.first}, {part.end}): {part.state}</title></rect>'
            )
    top = _ROW * (len(rows) + 1)
    for number, state in enumerate(_states(rows)):
        left = _LABELS + number * 100
        bars.append(f'<rect x="{left}" y="{top + 4}" width="10" height="10" fill="{_COLOURS[state]}"/>')
        bars.append(f'<text x="{left + 15}" y="{top + 13}">{_MEANINGS[state]}</text>')
    right = _LABELS + _WIDTH
    size = f'width="{right + 8}" height="{top + _ROW}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="12" fill="#333">',
            f'<rect {size} fill="#fff"/>',
            '<text x="8" y="15">bucket</text>',
            f'<text x="{_LABELS}" y="15">{first}</text>',
            f'<text x="{right}" y="15" text-anchor="end">{end}</text>',
            *bars,
            "</svg>",
            "",
        )
    )


def _rows(timeline: Timeline) -> list[list[Part]]:
    return [list(row) for _, row in groupby(timeline.parts(), key=lambda part: part.segment.id)]


def _bounds(rows: list[list[Part]]) -> tuple[int, int]:
    return min(row[0].first for row in rows), max(row[-1].end for row in rows)


def _states(rows: list[list[Part]]) -> list[State]:
    found = {part.state for row in rows for part in row}
    return [state for state in _MARKS if state in found]


def _label(row: list[Part]) -> str:
    segment = row[0].segment
    return f"v{segment.generation.version} p{segment.partition}{'*' if segment.is_founding else ''} {segment.id}"
