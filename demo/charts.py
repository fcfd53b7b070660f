"""Time series as SVG, so that the report needs neither scripts nor a network.

A chart starts at its first value and has the numbered steps of the demo in the background. The page's style sheet
defines the colours: `s0` to `s7` for lines, `calm` and `disturbs` for steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from demo.facts import Step

__all__ = ["Points", "chart", "legend", "stacked", "strips"]

Points = Sequence[tuple[float, float]]
_COLOURS: Final = 8
_WIDTH, _HEIGHT = 920, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 24, 28
_TITLE, _NOTE = 28, 16
_SVG: Final = re.compile(r'<svg viewBox="0 0 \d+ (?P<height>\d+)".*?>(?P<parts>.*)</svg>', re.DOTALL)
_LINES: Final = 4
"""Approximate number of grid lines."""
_TIMES: Final = 8
_STRIP: Final = 26
_WIDE: Final = 12.0
"""Minimum width of a run that shows its value."""


class _Time:
    """Maps seconds to x coordinates."""

    def __init__(self, series: Mapping[str, Points], steps: Sequence[Step]) -> None:
        times = [at for points in series.values() for at, _ in points] or [step.began for step in steps] or [0.0]
        first = min(times)
        self.start = max((step.began for step in steps if step.began <= first <= step.ended), default=first)
        self.end = max([self.start + 1e-9, *times, *(step.ended for step in steps)])

    def x(self, at: float) -> float:
        return _LEFT + (at - self.start) / (self.end - self.start) * (_WIDTH - _LEFT - _RIGHT)


class _Scale:
    """Maps values to y coordinates, linearly or logarithmically."""

    def __init__(self, series: Mapping[str, Points], *, log: bool) -> None:
        values = [value for points in series.values() for _, value in points]
        most, least = max(values, default=0.0), min((value for value in values if value > 0), default=1.0)
        self._log = log and most > 0
        if self._log:
            self.marks = [10.0**place for place in range(_power(least), max(_power(least), _power(most - 1e-9)) + 2)]
        else:
            step = _nice(most / _LINES) if most else 1.0
            self.marks = [step * place for place in range(max(1, math.ceil(most / step - 1e-9)) + 1)]

    def y(self, value: float) -> float:
        low, high, at = (self._place(given) for given in (self.marks[0], self.marks[-1], max(value, self.marks[0])))
        return _HEIGHT - _BOTTOM - (at - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def _place(self, value: float) -> float:
        return math.log10(value) if self._log else value


def chart(
    series: Mapping[str, Points], steps: Sequence[Step], *, unit: str = "", stairs: bool = False, log: bool = False
) -> str:
    """Draw one line for each series over the demo's steps; `stairs` is for values that change in jumps."""
    time, scale = _Time(series, steps), _Scale(series, log=log)
    lines = (
        _line([(time.x(at), scale.y(value)) for at, value in points], place, name, stairs=stairs)
        for place, (name, points) in enumerate(series.items())
    )
    return _picture(_HEIGHT, [*_bands(steps, time, _HEIGHT), *_grid(scale, unit), *_times(time, _HEIGHT), *lines])


def strips(series: Mapping[str, Points], steps: Sequence[Step]) -> str:
    """Draw one strip for each series, darker for higher values, with the values in it."""
    time = _Time(series, steps)
    height = _TOP + _STRIP * len(series) + _BOTTOM
    most = max((value for points in series.values() for _, value in points), default=0.0) or 1.0
    drawn = (
        part
        for row, (name, points) in enumerate(series.items())
        for part in _strip(name, points, time, top=_TOP + _STRIP * row, most=most)
    )
    return _picture(height, [*_bands(steps, time, height), *drawn, *_times(time, height)])


def legend(names: Sequence[str]) -> str:
    """Return the legend that assigns colours to names."""
    entries = (f'<span><i class="s{place % _COLOURS}"></i>{escape(name)}</span>' for place, name in enumerate(names))
    return f'<p class="legend">{"".join(entries)}</p>'


def stacked(charts: Mapping[str, str], notes: Sequence[str], *, style: str) -> str:
    """Return one SVG file with the charts below each other, each under its title, and lines of text."""
    parts, top = [f"<style>{style}</style>"], 0
    for title, drawn in charts.items():
        found = _SVG.search(drawn)
        assert found is not None
        height = int(found["height"])
        parts.append(f'<text class="title" x="{_LEFT}" y="{top + _TITLE - 8}">{escape(title)}</text>')
        parts.append(f'<svg y="{top + _TITLE}" width="{_WIDTH}" height="{height}">{found["parts"]}</svg>')
        top += _TITLE + height
    for line in notes:
        top += _NOTE
        parts.append(f'<text x="{_LEFT}" y="{top}">{escape(line)}</text>')
    top += _NOTE
    head = f'<svg viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join([head, f'<rect class="page" width="{_WIDTH}" height="{top}"/>', *parts, "</svg>\n"])


def _picture(height: int, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return "\n".join(['<div class="picture">', head, *parts, "</svg></div>"])


def _bands(steps: Sequence[Step], time: _Time, height: int) -> Iterator[str]:
    """Yield the numbered steps as the background; a tooltip shows their titles."""
    for number, step in enumerate(steps, start=1):
        left, right = time.x(max(step.began, time.start)), time.x(step.ended)
        if right <= left:
            continue
        style = "disturbs" if step.disturbs else "calm"
        yield (
            f'<g class="{style}"><title>{escape(step.title)}</title>'
            f'<rect x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{height - _TOP - _BOTTOM}"/>'
            f'<text x="{(left + right) / 2:.1f}" y="{_TOP - 8}" text-anchor="middle">{number}</text></g>'
        )


def _grid(scale: _Scale, unit: str) -> Iterator[str]:
    for value in scale.marks:
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_figure(value)}{escape(unit)}</text>'


def _times(time: _Time, height: int) -> Iterator[str]:
    step = max(1.0, _nice((time.end - time.start) / _TIMES))
    at = math.ceil(time.start / step) * step
    while at <= time.end:
        yield f'<text x="{time.x(at):.1f}" y="{height - 8}" text-anchor="middle">{at:.0f} s</text>'
        at += step


def _line(places: Points, number: int, name: str, *, stairs: bool) -> str:
    if stairs:
        corners = [[(x, before), (x, y)] for (_, before), (x, y) in pairwise(places)]
        places = [*places[:1], *(place for pair in corners for place in pair)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="s{number % _COLOURS}" points="{path}"><title>{escape(name)}</title></polyline>'


def _strip(name: str, points: Points, time: _Time, *, top: int, most: float) -> Iterator[str]:
    middle = top + _STRIP / 2 + 4
    yield f'<text x="{_LEFT - 6}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
    for began, ended, value in _runs(points, time.end):
        left, right = time.x(began), time.x(ended)
        shown = f'<text x="{(left + right) / 2:.1f}" y="{middle:.0f}" text-anchor="middle">{_figure(value)}</text>'
        yield (
            f'<g class="strip"><title>{escape(name)}: {_figure(value)}</title>'
            f'<rect x="{left:.1f}" y="{top + 2}" width="{right - left:.1f}" height="{_STRIP - 4}" '
            f'style="--share:{value / most:.2f}"/>{shown if right - left >= _WIDE else ""}</g>'
        )


def _runs(points: Points, end: float) -> Iterator[tuple[float, float, float]]:
    """Yield start, end and value of each run of equal values."""
    began = 0
    for place in range(1, len(points) + 1):
        if place == len(points) or points[place][1] != points[began][1]:
            yield points[began][0], points[place][0] if place < len(points) else end, points[began][1]
            began = place


def _power(value: float) -> int:
    return math.floor(math.log10(value))


def _nice(value: float) -> float:
    """Return the next round number: 1, 2 or 5 times a power of ten."""
    size = 10.0 ** _power(value)
    return next(size * step for step in (1, 2, 5, 10) if size * step >= value * (1 - 1e-9))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
