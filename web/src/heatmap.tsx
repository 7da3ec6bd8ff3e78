// Heat maps on a canvas: the number of samples by time (to the right) and value (upwards).

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Heatmap } from "./api";
import { type Format, STEPS, themed, useTheme } from "./chart";
import { clock, count, number } from "./format";

/** Scales that several heat maps share, so that they can be compared. */
export interface Common {
  low: number;
  high: number;
  /** The smallest distance from zero. */
  smallest: number;
  /** Samples of the strongest colour. */
  most: number;
}

/** Rows on a linear scale. */
const LINEAR_ROWS = 60;

export function common(maps: Heatmap[]): Common {
  const bounds = maps.flatMap((map) => map.rows.flat());
  const sizes = bounds.map(Math.abs).filter((size) => size > 0);
  return {
    low: bounds.length ? Math.min(...bounds) : 0,
    high: bounds.length ? Math.max(...bounds) : 1,
    smallest: sizes.length ? Math.min(...sizes) : 1,
    most: Math.max(1, ...maps.flatMap((map) => map.counts.map((column) => Math.max(0, ...column)))),
  };
}

/** The same samples in rows of equal height; those of a row that is divided are divided evenly. */
export function linear(map: Heatmap, low: number, high: number, rows = LINEAR_ROWS): Heatmap {
  if (map.rows.length === 0 || high <= low) return map;
  const size = (high - low) / rows;
  const shares = map.rows.map(([from, to]) => {
    const first = Math.min(rows - 1, Math.max(0, Math.floor((from - low) / size)));
    const last = Math.min(rows - 1, Math.max(first, Math.ceil((to - low) / size) - 1));
    const parts: [number, number][] = [];
    for (let row = first; row <= last; row += 1) {
      const overlap = Math.min(to, low + (row + 1) * size) - Math.max(from, low + row * size);
      parts.push([row, to > from ? Math.max(0, overlap) / (to - from) : 1]);
    }
    return parts;
  });
  return {
    rows: Array.from({ length: rows }, (_, row) => [low + row * size, low + (row + 1) * size]),
    counts: map.counts.map((column) => {
      if (column.length === 0) return column;
      const divided = new Array<number>(rows).fill(0);
      column.forEach((number, at) => {
        for (const [row, part] of shares[at] ?? []) divided[row] = (divided[row] ?? 0) + number * part;
      });
      return divided;
    }),
  };
}

/** The height of a value on a logarithmic scale on both sides of zero. */
export function logarithm(value: number, smallest: number): number {
  if (value === 0) return 0;
  return Math.sign(value) * (Math.log(Math.abs(value) / smallest) + 1);
}

/** From the bottom of a row to its top. Zero itself has no height. */
function heights([low, high]: [number, number], isLog: boolean, smallest: number): [number, number] {
  if (!isLog) return [low, high];
  const [bottom, top] = [logarithm(low, smallest), logarithm(high, smallest)];
  return bottom === top ? [bottom, bottom + 1] : [bottom, top];
}

/** Labels of one level are tried before those of the next. */
const DECIMAL_LEVELS = [
  [1],
  [5, 2],
  [3, 4, 6, 7, 8, 9],
  [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5],
  Array.from({ length: 90 }, (_, at) => 1 + at / 10),
];
const BINARY_LEVELS = [
  [1],
  [32],
  [2, 4, 8, 16, 64, 128, 256, 512],
  [1.5, 3, 6, 12, 24, 48, 96, 192, 384, 768],
];
/** With so many labels the scale is clear, and finer levels are not needed. */
const LABELS_ENOUGH = 3;

/** Round values for the labels of an axis, at least `apart` of its height from each other. */
export function labels(
  { low, high, smallest }: Omit<Common, "most">,
  isLog: boolean,
  binary: boolean,
  apart: number,
): number[] {
  if (high <= low) return [low];
  if (!isLog) {
    const step = roundStep((high - low) * apart, binary);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => (first + at) * step);
  }
  const [bottom, top] = [logarithm(low, smallest), logarithm(high, smallest)];
  const chosen: number[] = [];
  const add = (value: number) => {
    const height = logarithm(value, smallest);
    const isFar = (other: number) => Math.abs(logarithm(other, smallest) - height) >= apart * (top - bottom);
    if (value >= low && value <= high && chosen.every(isFar)) chosen.push(value);
  };
  add(0);
  const base = binary ? 1024 : 10;
  const power = (size: number) => Math.floor(Math.log(size) / Math.log(base) + 1e-9);
  const [from, to] = [power(smallest), power(Math.max(Math.abs(low), Math.abs(high)))];
  for (const level of binary ? BINARY_LEVELS : DECIMAL_LEVELS) {
    if (chosen.length >= LABELS_ENOUGH) break;
    for (let exponent = to; exponent >= from; exponent -= 1) {
      for (const factor of level) {
        // A division is exact where a negative power is not.
        const size = exponent < 0 ? factor / base ** -exponent : factor * base ** exponent;
        if (size < smallest) continue;
        add(size);
        add(-size);
      }
    }
  }
  return chosen.sort((a, b) => a - b);
}

/** Positions of the times at round seconds, at most so many. */
export function timeLabels(times: number[], most: number): number[] {
  const [first = 0, last = 0] = [times[0], times.at(-1)];
  const step =
    STEPS.find((step) => Math.floor(last / step) - Math.ceil(first / step) < most) ?? STEPS.at(-1) ?? 1;
  const round = Math.ceil(first / step);
  return Array.from({ length: Math.max(0, Math.floor(last / step) - round + 1) }, (_, mark) =>
    times.findIndex((time) => time >= (round + mark) * step),
  ).filter((at) => at >= 0);
}

/** The next power of two, or of ten times one, two or five. */
function roundStep(least: number, binary: boolean): number {
  if (binary) return 2 ** Math.ceil(Math.log2(least));
  const decade = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((factor) => factor * decade >= least) ?? 10) * decade;
}

const LEFT = 76;
const BOTTOM = 22;
/** Between two labels of the values. */
const LABEL_PIXELS = 30;
/** Between the middles of two times. */
const TIME_PIXELS = 70;

export function HeatmapChart(props: {
  times: number[];
  heatmap: Heatmap;
  /** The scales that it shares with the heat maps beside it. */
  shared: Common;
  isLog: boolean;
  /** Whether the values are bytes, whose labels are multiples of 1024. */
  binary?: boolean;
  height?: number;
  format?: Format;
  title?: string;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const isDark = useTheme();
  const [under, setUnder] = useState<string | undefined>();
  const { times, isLog, shared, title, binary = false } = props;
  const format = props.format ?? number;
  const height = props.height ?? 240;
  const { low, high, smallest } = shared;
  const { rows, counts } = useMemo(
    () => (isLog ? props.heatmap : linear(props.heatmap, low, high)),
    [props.heatmap, isLog, low, high],
  );
  const most = isLog ? shared.most : common([{ rows, counts }]).most;
  const bottom = isLog ? logarithm(low, smallest) : low;
  const top = !isLog ? high : high === 0 ? 1 : logarithm(high, smallest);
  // The part of the height at which a value or a row is.
  const part = (at: number) => (top > bottom ? (at - bottom) / (top - bottom) : 0);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || rows.length === 0) return;
    const scale = devicePixelRatio;
    const width = element.clientWidth;
    element.width = width * scale;
    element.height = height * scale;
    context.scale(scale, scale);
    context.font = "12px system-ui, sans-serif";
    const [across, up] = [width - LEFT, height - BOTTOM];
    // Whole pixels, so that neither gaps nor overlaps show between cells.
    const x = (at: number) => Math.round((at / counts.length) * across) + LEFT;
    const y = (at: number) => up - Math.round(part(at) * up);
    context.fillStyle = themed("--accent");
    const edges = rows.map((row) => heights(row, isLog, smallest).map(y) as [number, number]);
    counts.forEach((column, at) => {
      column.forEach((number, row) => {
        const [from, to] = edges[row] ?? [0, 0];
        if (number <= 0) return;
        context.globalAlpha = 0.15 + 0.85 * Math.sqrt(Math.min(1, number / most));
        context.fillRect(x(at), to, x(at + 1) - x(at), Math.max(1, from - to));
      });
    });
    context.globalAlpha = 1;
    context.fillStyle = themed("--quiet");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of labels({ low, high, smallest }, isLog, binary, LABEL_PIXELS / up)) {
      const middle = y(isLog ? logarithm(value, smallest) : value);
      context.fillText(format(value), LEFT - 6, Math.max(8, Math.min(up - 6, middle)));
    }
    context.textAlign = "center";
    for (const at of timeLabels(times, Math.floor(across / TIME_PIXELS))) {
      // In whole and at its place, or not at all.
      if (x(at) <= width - TIME_PIXELS / 2) context.fillText(clock(times[at] ?? 0), x(at), height - 8);
    }
  }, [rows, counts, times, height, isDark, most, isLog, binary, low, high, smallest, bottom, top]);
  if (props.heatmap.rows.length === 0)
    return <p class="quiet">{title ? `${title}: no samples.` : "No samples in this window."}</p>;
  const onMove = (event: MouseEvent) => {
    const element = canvas.current;
    if (!element) return;
    const at = Math.floor(((event.offsetX - LEFT) / (element.clientWidth - LEFT)) * counts.length);
    const above = bottom + (1 - event.offsetY / (height - BOTTOM)) * (top - bottom);
    const row = rows.findIndex((row) => {
      const [from, to] = heights(row, isLog, smallest);
      return above >= from && above < to;
    });
    const [time, bounds] = [times[at], rows[row]];
    if (time === undefined || !bounds || at < 0) return setUnder(undefined);
    const samples = Math.round(counts[at]?.[row] ?? 0);
    setUnder(`${clock(time)}, ${format(bounds[0])} to ${format(bounds[1])}: ${count(samples, "samples")}`);
  };
  return (
    <figure class="heatmap">
      {title && <h2>{title}</h2>}
      <canvas
        ref={canvas}
        role="img"
        style={{ height: `${height}px` }}
        aria-label={`heat map of values from ${format(low)} to ${format(high)}${title ? `, ${title}` : ""}`}
        onMouseMove={onMove}
        onMouseLeave={() => setUnder(undefined)}
      />
      <figcaption>
        {under ??
          `Values from ${format(low)} to ${format(high)}, ${isLog ? "logarithmic" : "linear"}; the stronger the colour, the more samples.`}
      </figcaption>
    </figure>
  );
}
