// Charts by uPlot, sparklines as one SVG path, heat maps on a canvas.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Heatmap } from "./api";
import { clock, number } from "./format";

/** Distinct in both themes and with colour blindness; the order never changes. */
export const COLOURS = [
  "#0b84a5",
  "#d1495b",
  "#66a182",
  "#edae49",
  "#7d5ba6",
  "#2e4057",
  "#c97b63",
  "#8d96a3",
];

/** Seconds between two labels: at least the one second that labels show. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800];

export interface Line {
  label: string;
  values: (number | null)[];
}

function themed(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function Chart(props: {
  times: number[];
  lines: Line[];
  height?: number;
  unit?: string;
  onZoom?: (from: number, to: number) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const zoom = useRef(props.onZoom);
  zoom.current = props.onZoom;
  const shape = props.lines.map((line) => line.label).join("\n");
  const height = props.height ?? 240;
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const axis = {
      stroke: themed("--quiet"),
      grid: { stroke: themed("--line"), width: 1 },
      ticks: { show: false },
    };
    const created = new uPlot(
      {
        width: element.clientWidth || 600,
        height,
        // Half of the last label is outside the chart.
        padding: [null, 32, null, null],
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        legend: { live: true },
        scales: {
          x: { time: true },
          // From zero: otherwise a small change looks like a fall to nothing.
          y: { range: (_, min, max) => [Math.min(0, min), max > 0 ? max * 1.05 : 1] },
        },
        axes: [
          { ...axis, space: 90, incrs: STEPS, values: (_, ticks) => ticks.map(clock) },
          {
            ...axis,
            size: 60,
            values: (_, ticks) => ticks.map((tick) => `${number(tick)}${props.unit ?? ""}`),
          },
        ],
        series: [
          { label: "time", value: (_, time) => (time === null ? "–" : clock(time)) },
          ...props.lines.map((line, at) => ({
            label: line.label,
            stroke: COLOURS[at % COLOURS.length],
            width: 1.5,
            dash: at >= COLOURS.length ? [6, 3] : undefined,
            points: { show: (plot: uPlot) => (plot.data[0]?.length ?? 0) < 40 },
            value: (_: uPlot, value: number | null) => number(value),
          })),
        ],
        hooks: {
          setSelect: [
            (u) => {
              if (u.select.width < 5) return;
              const from = u.posToVal(u.select.left, "x");
              const to = u.posToVal(u.select.left + u.select.width, "x");
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              zoom.current?.(Math.floor(from), Math.ceil(to));
            },
          ],
        },
      },
      [[], ...props.lines.map(() => [])],
      element,
    );
    plot.current = created;
    const resize = new ResizeObserver(() => created.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      created.destroy();
    };
  }, [shape, height]);
  useEffect(() => {
    plot.current?.setData([props.times, ...props.lines.map((line) => line.values)] as uPlot.AlignedData);
  });
  const label = props.lines.map((line) => line.label).join(", ");
  return <div class="chart" ref={box} role="img" aria-label={`chart of ${label}`} />;
}

/** A line without axes, with gaps where values are missing. */
export function Sparkline(props: { values: (number | null)[]; width?: number; height?: number }) {
  const width = props.width ?? 120;
  const height = props.height ?? 24;
  return (
    <svg class="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
      <path d={path(fromFirst(props.values), width, height)} />
    </svg>
  );
}

/** Without the gap before the first value; at least ten values. */
function fromFirst(values: (number | null)[]): (number | null)[] {
  const first = values.findIndex((value) => value !== null);
  return first < 0 ? [] : values.slice(Math.min(first, Math.max(0, values.length - 10)));
}

export function path(values: (number | null)[], width: number, height: number): string {
  const present = values.filter((value): value is number => value !== null);
  if (present.length === 0) return "";
  const min = Math.min(0, ...present);
  const max = Math.max(...present, min + 1e-9);
  const x = (at: number) => ((at / Math.max(values.length - 1, 1)) * width).toFixed(1);
  const y = (value: number) => (height - 1 - ((value - min) / (max - min)) * (height - 2)).toFixed(1);
  let pen = "M";
  let text = "";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    text += `${pen}${x(at)} ${y(value)}`;
    // A single point needs a stroke of some length to be visible.
    if (pen === "M") text += "h.1";
    pen = "L";
  });
  return text;
}

/** The number of samples by time (to the right) and value (upwards); darker is more. */
export function HeatmapChart(props: { times: number[]; heatmap: Heatmap; height?: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { rows, counts } = props.heatmap;
  const height = props.height ?? 240;
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const width = element.clientWidth;
    element.width = width * devicePixelRatio;
    element.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
    context.clearRect(0, 0, width, height);
    const max = Math.max(1, ...counts.flat());
    const cell = { width: width / Math.max(counts.length, 1), height: height / Math.max(rows.length, 1) };
    context.fillStyle = themed("--accent");
    counts.forEach((column, at) => {
      column.forEach((count, row) => {
        if (count === 0) return;
        context.globalAlpha = 0.15 + 0.85 * Math.sqrt(count / max);
        const top = height - (row + 1) * cell.height;
        context.fillRect(at * cell.width, top, Math.ceil(cell.width), Math.ceil(cell.height));
      });
    });
  });
  if (rows.length === 0) return <p class="quiet">No samples in this window.</p>;
  const low = rows[0]?.[0] ?? 0;
  const high = rows[rows.length - 1]?.[1] ?? 0;
  return (
    <figure class="heatmap">
      <canvas
        ref={canvas}
        role="img"
        style={{ height: `${height}px` }}
        aria-label={`heat map of values from ${number(low)} to ${number(high)}`}
      />
      <figcaption>
        values from {number(low)} (below) to {number(high)} (above), logarithmic; darker is more samples
      </figcaption>
    </figure>
  );
}
