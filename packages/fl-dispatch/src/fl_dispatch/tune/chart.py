# SPDX-License-Identifier: Apache-2.0
"""The picture: for each workload a chart of microseconds over tokens, both logarithmic, a line for each implementation and
one for the floor that memory sets. Plain SVG, so that it needs nothing that a device machine may lack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from fl_dispatch.tune.choose import cost
from fl_dispatch.tune.measure import Figure

_WIDTH, _HEIGHT, _COLUMNS = 460, 320, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 64
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_FLOOR = "memory floor"

Line = tuple[str, list[tuple[int, float]]]


def svg(figures: Sequence[Figure], dtype: str, purpose: str, title: str) -> str:
    """The charts of one dtype.

    Args:
        figures: what was measured.
        dtype: the one to show.
        purpose: ``graph`` or ``eager``: which time is shown.
        title: above all charts.
    """
    shown = [figure for figure in figures if figure.dtype == dtype]
    names = list(dict.fromkeys(figure.impl_id for figure in shown))
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    workloads = list(dict.fromkeys(figure.workload for figure in shown))
    rows = math.ceil(len(workloads) / _COLUMNS)
    parts = []
    for place, workload in enumerate(workloads):
        at = (place % _COLUMNS * _WIDTH, 30 + place // _COLUMNS * _HEIGHT)
        chart = _chart(workload, _lines([f for f in shown if f.workload == workload], purpose), colours)
        parts.append(f'<g transform="translate({at[0]},{at[1]})">{chart}</g>')
    width, height = _WIDTH * _COLUMNS, 30 + rows * _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="20" font-size="13">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def _lines(figures: Iterable[Figure], purpose: str) -> list[Line]:
    lines: dict[str, list[tuple[int, float]]] = {}
    floor: dict[int, float] = {}
    for figure in figures:
        floor[figure.tokens] = figure.floor_us
        one = cost(figure, purpose)
        if one is not None:
            lines.setdefault(figure.impl_id, []).append((figure.tokens, one[0]))
    return [(_FLOOR, sorted(floor.items())), *((name, sorted(points)) for name, points in lines.items())]


def _chart(name: str, lines: Sequence[Line], colours: dict[str, str]) -> str:
    tokens = sorted({x for _, points in lines for x, _ in points})
    # The floor of a few tokens is far below what any call takes: it may leave the chart.
    times = [y for label, points in lines for _, y in points if label != _FLOOR and y > 0]
    if not times:
        return f'<text x="{_LEFT}" y="20" font-size="12">{escape(name)}: nothing could be measured</text>'
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)) + 1e-9)
    first, last = math.log2(tokens[0]), math.log2(tokens[-1])

    def x_of(count: int) -> float:
        return _LEFT + (math.log2(count) - first) / ((last - first) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(us: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (1 - (math.log10(us) - low) / ((high - low) or 1))

    parts = [f'<text x="{_LEFT}" y="20" font-size="12">{escape(name)}, microseconds a call</text>']
    for power in range(low, high + 1):
        y, shown = y_of(10.0**power), f"{10.0**power:g}"
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for count in tokens:
        parts.append(f'<text x="{x_of(count):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - _BOTTOM + 30}" text-anchor="middle">tokens</text>')
    at = 12
    for label, points in lines:
        inside = [(x_of(x), y_of(y)) for x, y in points if y >= 10.0**low]
        colour, dashes = (colours[label], "") if label != _FLOOR else ("#777", ' stroke-dasharray="5 4"')
        if inside:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in inside)
            parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if label != _FLOOR:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in inside]
        y = _HEIGHT - 16
        parts.append(f'<path d="M{at} {y - 4}h16" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(f'<text x="{at + 20}" y="{y}">{escape(label)}</text>')
        at += 34 + 6 * len(label)
    return "".join(parts)
