#!/usr/bin/env python3
"""Draws growth.svg from the medians of growth.sh: two columns (contexts, tags), three rows, both axes logarithmic."""
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 170, 64, 34, 56
ROWS = ["ns per message", "bytes per context", "ns per row of a flush"]
COLUMNS = ["contexts", "tags"]


def read(lines):
    points = {}
    for line in lines:
        series, size, *figures = line.rstrip("\n").split("\t")
        for row, figure in enumerate(figures):
            median, low, high = (float(value) for value in figure.split())
            points.setdefault((series, row), []).append((float(size), median, low, high))
    return points


def decades(low, high):
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def short(value):
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def panel(points, left, top, title):
    xs, ys = decades(points[0][0], points[-1][0]), decades(min(p[2] for p in points), max(p[3] for p in points))
    # A single decade would have no height.
    last_x, last_y = max(xs[-1], xs[0] + 1), max(ys[-1], ys[0] + 1)
    x = lambda value: left + (math.log10(value) - xs[0]) / (last_x - xs[0]) * WIDTH
    y = lambda value: top + HEIGHT - (math.log10(value) - ys[0]) / (last_y - ys[0]) * HEIGHT
    yield f'<text x="{left}" y="{top - 8}" class="title">{title}</text>'
    for power in range(ys[0], last_y + 1):
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" class="grid"/>'
        yield f'<text x="{left - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{short(10**power)}</text>'
    for power in range(xs[0], last_x + 1):
        yield f'<text x="{x(10**power):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{short(10**power)}</text>'
    for size, _, low, high in points:
        yield f'<line x1="{x(size):.1f}" x2="{x(size):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" class="spread"/>'
    line = " ".join(f"{x(size):.1f},{y(median):.1f}" for size, median, _, _ in points)
    yield f'<polyline points="{line}" class="line"/>'
    for size, median, _, _ in points:
        yield f'<circle cx="{x(size):.1f}" cy="{y(median):.1f}" r="3"><title>{size:g}: {median:g}</title></circle>'


def main():
    points = read(sys.stdin)
    width = LEFT + 2 * WIDTH + LEFT + 30
    height = TOP + 3 * (HEIGHT + GAP)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
    print("<style>text{font:12px sans-serif;fill:#444}.title{font-weight:bold}.grid{stroke:#ddd}.spread{stroke:#9bc}"
          ".line{fill:none;stroke:#27a;stroke-width:2}circle{fill:#27a}</style>")
    print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for column, series in enumerate(COLUMNS):
        for row, what in enumerate(ROWS):
            if (series, row) in points:
                left, top = LEFT + column * (WIDTH + LEFT), TOP + row * (HEIGHT + GAP)
                print("\n".join(panel(points[series, row], left, top, f"{what}, by {series}")))
    print("</svg>")


if __name__ == "__main__":
    main()
