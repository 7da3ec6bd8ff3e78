#!/usr/bin/env python3
"""Draws medians of growth.sh and first-loss.sh: one column per series (contexts, tags), one row per figure, both axes logarithmic.

Arguments name the rows; one that begins with `=` has a linear axis from 0 upwards. Each line of input has the series, the size and, per row, a median with least and most, or `-`. A series
`contexts/weir` is one of several lines of a panel; the names then form a legend.
"""
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 170, 64, 34, 56
# Line and spread, in the order in which the lines first occur.
COLOURS = [("#27a", "#9bc"), ("#c52", "#eb9"), ("#383", "#9c9"), ("#849", "#cad")]


def read(lines, linear):
    """Points by column, row and line; the lines in their order. `linear` has the rows with a linear axis."""
    points, names = {}, []
    for line in lines:
        series, size, *figures = line.rstrip("\n").split("\t")
        column, _, name = series.partition("/")
        if name not in names:
            names.append(name)
        for row, figure in enumerate(figures):
            values = [float(value) for value in figure.split()] if figure != "-" else []
            # A logarithmic axis has no place for memory that did not grow.
            if values and (min(values) > 0 or row in linear):
                points.setdefault((column, row), {}).setdefault(name, []).append((float(size), *values))
    return points, names


def decades(low, high):
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def short(value):
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def ticks(high):
    """About five round steps from 0 up to `high` or more."""
    power = 10 ** math.floor(math.log10(high / 4))
    step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times * 5 >= high)
    return [step * count for count in range(math.ceil(high / step) + 1)]


def panel(lines, names, left, top, title, linear):
    every = [point for points in lines.values() for point in points]
    xs = decades(min(p[0] for p in every), max(p[0] for p in every))
    # A single decade would have no width.
    last_x = max(xs[-1], xs[0] + 1)
    x = lambda value: left + (math.log10(value) - xs[0]) / (last_x - xs[0]) * WIDTH
    if linear:
        marks = ticks(max(max(p[3] for p in every), 1))
        place = lambda value: value / marks[-1]
    else:
        ys = decades(min(p[2] for p in every), max(p[3] for p in every))
        last_y = max(ys[-1], ys[0] + 1)
        marks = [10**power for power in range(ys[0], last_y + 1)]
        place = lambda value: (math.log10(value) - ys[0]) / (last_y - ys[0])
    y = lambda value: top + HEIGHT - place(value) * HEIGHT
    yield f'<text x="{left}" y="{top - 8}" class="title">{title}</text>'
    for mark in marks:
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" class="grid"/>'
        yield f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{short(mark)}</text>'
    for power in range(xs[0], last_x + 1):
        yield f'<text x="{x(10**power):.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{short(10**power)}</text>'
    for name, points in lines.items():
        of = names.index(name)
        for size, _, low, high in points:
            yield f'<line x1="{x(size):.1f}" x2="{x(size):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" class="spread{of}"/>'
        line = " ".join(f"{x(size):.1f},{y(median):.1f}" for size, median, _, _ in points)
        yield f'<polyline points="{line}" class="line{of}"/>'
        for size, median, _, _ in points:
            shown = f"{name}, {size:g}" if name else f"{size:g}"
            yield f'<circle cx="{x(size):.1f}" cy="{y(median):.1f}" r="3" class="dot{of}"><title>{shown}: {median:g}</title></circle>'


def main():
    rows = [row.lstrip("=") for row in sys.argv[1:]]
    linear = {at for at, row in enumerate(sys.argv[1:]) if row.startswith("=")}
    points, names = read(sys.stdin, linear)
    columns = sorted({column for column, _ in points})
    legend = 24 if any(names) else 0
    width = len(columns) * (LEFT + WIDTH) + 30
    height = TOP + legend + len(rows) * (HEIGHT + GAP)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
    print("<style>text{font:12px sans-serif;fill:#444}.title{font-weight:bold}.grid{stroke:#ddd}" + "".join(
        f".spread{of}{{stroke:{pale}}}.line{of}{{fill:none;stroke:{full};stroke-width:2}}.dot{of}{{fill:{full}}}"
        for of, (full, pale) in enumerate(COLOURS[:len(names)])) + "</style>")
    print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for of, name in enumerate(names if legend else []):
        left = LEFT + of * WIDTH / len(names)
        print(f'<line x1="{left:.1f}" x2="{left + 18:.1f}" y1="14" y2="14" class="line{of}"/><text x="{left + 24:.1f}" y="18">{name}</text>')
    for column, series in enumerate(columns):
        for row, what in enumerate(rows):
            if (series, row) in points:
                left, top = LEFT + column * (WIDTH + LEFT), TOP + legend + row * (HEIGHT + GAP)
                print("\n".join(panel(points[series, row], names, left, top, f"{what}, by {series}", row in linear)))
    print("</svg>")


if __name__ == "__main__":
    main()
