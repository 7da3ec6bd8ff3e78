// Charts by uPlot, and sparklines as one SVG path.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { last } from "./data";
import { clock, number } from "./format";

/** Distinct with colour blindness; each has a contrast of at least 3 to the ground of both themes. The order never changes. */
export const COLOURS = [
  "#1f8fb5",
  "#d1495b",
  "#3f9160",
  "#b87a14",
  "#8f6bc4",
  "#5f7a99",
  "#c0693f",
  "#7a8450",
  "#cc5aa0",
  "#4f7fe0",
];

/** Seconds between two labels: at least the one second that labels show. */
export const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800];

/** Distances between labels of bytes: powers of two. */
const BINARY_STEPS = Array.from({ length: 60 }, (_, at) => 2 ** at);

export interface Line {
  label: string;
  values: (number | null)[];
  /** Position in `COLOURS`; its own position by default. */
  colour?: number;
  isEarlier?: boolean;
}

export function themed(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Whether a condition on screen or theme holds. */
export function useMedia(condition: string): boolean {
  const [holds, setHolds] = useState(() => matchMedia(condition).matches);
  useEffect(() => {
    const query = matchMedia(condition);
    const changed = () => setHolds(query.matches);
    changed();
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [condition]);
  return holds;
}

/** Changes with the theme, whose colours charts read when they are made. */
export const useTheme = () => useMedia("(prefers-color-scheme: dark)");

export type Format = (value: number | null | undefined) => string;

/** From zero: otherwise a small change looks like a fall to nothing. `fit`: from the data. */
export function range(min: number | null, max: number | null, fit: boolean): [number, number] {
  if (min === null || max === null) return [0, 1];
  if (!fit) return [Math.min(0, min), max > 0 ? max * 1.05 : min < 0 ? 0 : 1];
  const room = (max - min || Math.abs(max) || 1) * 0.05;
  return [min - room, max + room];
}

export function Chart(props: {
  times: number[];
  lines: Line[];
  height?: number;
  format?: Format;
  log?: boolean;
  fit?: boolean;
  /** Whether the values are bytes, whose labels are multiples of 1024. */
  binary?: boolean;
  /** Whether uPlot draws a legend; otherwise the caller does. */
  legend?: boolean;
  onZoom?: (from: number, to: number) => void;
  onUndo?: () => void;
  /** The position among the times under the cursor, of this chart or of another. */
  onCursor?: (at: number | null) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const now = useRef(props);
  now.current = props;
  const isDark = useTheme();
  const { log = false, fit = false, legend = true, binary = false } = props;
  const shape = props.lines.map((line) => `${line.label} ${line.colour} ${line.isEarlier}`).join("\n");
  const height = props.height ?? 240;
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const format: Format = (value) => (now.current.format ?? number)(value);
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
        cursor: {
          drag: { x: true, y: false, setScale: false },
          points: { size: 6 },
          // All charts of the page have one cursor.
          sync: { key: "weir" },
          bind: {
            dblclick: () => () => {
              now.current.onUndo?.();
              return null;
            },
          },
        },
        legend: { show: legend, live: true },
        scales: {
          x: { time: true },
          y: log ? { distr: 3, log: binary ? 2 : 10 } : { range: (_, min, max) => range(min, max, fit) },
        },
        axes: [
          // Its first label must not touch the lowest one of the other axis.
          { ...axis, space: 70, gap: 12, incrs: STEPS, values: (_, ticks) => ticks.map(clock) },
          {
            ...axis,
            size: 76,
            incrs: binary && !log ? BINARY_STEPS : undefined,
            values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))),
          },
        ],
        series: [
          {
            label: "time",
            value: (plot, time, _, at) => {
              const shown = at === null ? plot.data[0].at(-1) : time;
              return shown === undefined ? "–" : clock(shown);
            },
          },
          ...props.lines.map((line, index) => {
            const at = line.colour ?? index;
            return {
              label: line.label,
              stroke: COLOURS[at % COLOURS.length],
              width: line.isEarlier ? 1 : 1.5,
              dash: line.isEarlier ? [2, 4] : at >= COLOURS.length ? [8, 3] : undefined,
              points: { show: (plot: uPlot) => (plot.data[0]?.length ?? 0) < 40, fill: themed("--back") },
              // Without a cursor, as on a phone, the legend has the newest values.
              value: (plot: uPlot, value: number | null, series: number, at: number | null) =>
                format(at === null ? last((plot.data[series] ?? []) as (number | null)[]) : value),
            };
          }),
        ],
        hooks: {
          setSelect: [
            (u) => {
              if (u.select.width < 5) return;
              const from = u.posToVal(u.select.left, "x");
              const to = u.posToVal(u.select.left + u.select.width, "x");
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              now.current.onZoom?.(Math.floor(from), Math.ceil(to));
            },
          ],
          setCursor: [(u) => now.current.onCursor?.(u.cursor.idx ?? null)],
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
  }, [shape, height, isDark, log, fit, legend, binary]);
  useEffect(() => {
    // A logarithm needs values above zero.
    const drawn = (value: number | null) => (log && value !== null && value <= 0 ? null : value);
    const values = props.lines.map((line) => (log ? line.values.map(drawn) : line.values));
    plot.current?.setData([props.times, ...values] as uPlot.AlignedData);
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
