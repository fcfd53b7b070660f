"""Lines over time as SVG: drawn once, so a page needs neither scripts nor a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from demo.facts import Step

__all__ = ["COLOURS", "Points", "chart", "legend"]

Points = Sequence[tuple[float, float]]
COLOURS: Final = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2", "#a16207", "#475569")
_WIDTH, _HEIGHT = 920, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 24, 28
_LINES: Final = 4
"""How many steps the scale at the side has."""


class _Scale:
    """From seconds and values to places in the picture."""

    def __init__(self, *, start: float, end: float, most: float) -> None:
        self.start, self.end, self.most = start, max(end, start + 1e-9), most

    def x(self, at: float) -> float:
        return _LEFT + (at - self.start) / (self.end - self.start) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.most * (_HEIGHT - _TOP - _BOTTOM)


def chart(series: Mapping[str, Points], steps: Sequence[Step], *, unit: str = "", stairs: bool = False) -> str:
    """Draw one line for each series, over the steps of the story; `stairs` for what changes in jumps."""
    times = [at for points in series.values() for at, _ in points] + [step.ended for step in steps]
    most = _round_up(max((value for points in series.values() for _, value in points), default=0.0))
    scale = _Scale(start=min((step.began for step in steps), default=0.0), end=max(times, default=1.0), most=most)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">',
        *_bands(steps, scale),
        *_grid(scale, unit),
        *(
            _line(points, scale, COLOURS[place % len(COLOURS)], name, stairs=stairs)
            for place, (name, points) in enumerate(series.items())
        ),
        "</svg>",
    ]
    return "\n".join(parts)


def legend(names: Sequence[str]) -> str:
    """Which colour is whose."""
    entries = (
        f'<span><i style="background:{COLOURS[place % len(COLOURS)]}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _bands(steps: Sequence[Step], scale: _Scale) -> Iterator[str]:
    """The steps behind the lines, by number; their titles show when they are pointed at."""
    for number, step in enumerate(steps, start=1):
        left, right = scale.x(step.began), scale.x(step.ended)
        style = "disturbs" if step.disturbs else "calm"
        yield (
            f'<g class="{style}"><title>{escape(step.title)}</title>'
            f'<rect x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
            f'<text x="{(left + right) / 2:.1f}" y="{_TOP - 8}" text-anchor="middle">{number}</text></g>'
        )


def _grid(scale: _Scale, unit: str) -> Iterator[str]:
    for place in range(_LINES + 1):
        value = scale.most * place / _LINES
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_figure(value)}{escape(unit)}</text>'
    for place in range(9):
        at = scale.start + (scale.end - scale.start) * place / 8
        yield f'<text x="{scale.x(at):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{at:.0f} s</text>'


def _line(points: Points, scale: _Scale, colour: str, name: str, *, stairs: bool) -> str:
    places = [(scale.x(at), scale.y(value)) for at, value in points]
    if stairs:
        corners = [[(x, before), (x, y)] for (_, before), (x, y) in pairwise(places)]
        places = [*places[:1], *(place for pair in corners for place in pair)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" stroke="{colour}"><title>{escape(name)}</title></polyline>'


def _round_up(value: float) -> float:
    """The next number that divides well."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value > 0:
        size /= 10
    return next((size * step for step in (1, 2, 4, 6, 8, 10) if size * step >= value), size * 10) if value else 1.0


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
