// The content of a chart, as the URL has it: up to six metrics, a formula between two of them, groups, a window, and how they are drawn.

import type { Group, Points } from "./api";
import { UNITS, type Unit } from "./units";

export const LETTERS = ["a", "b", "c", "d", "e", "f"] as const;
export type Letter = (typeof LETTERS)[number];
export const OPERATIONS = ["/", "-", "+", "*"] as const;
export type Operation = (typeof OPERATIONS)[number];

export interface Chosen {
  letter: Letter;
  metric: string;
  kind: string | undefined;
  fn: string | undefined;
  /** Tags that series must have; with `!` in front, must not. */
  where: string[];
}

export interface Explored {
  chosen: Chosen[];
  by: string[];
  from: string;
  to: string;
  formula: { left: Letter; operation: Operation; right: Letter } | undefined;
  hidden: string[];
  only: string;
  log: boolean;
  /** Heat maps are logarithmic otherwise. */
  linear: boolean;
  /** The axis covers the data, and not zero. */
  fit: boolean;
  unit: Unit | undefined;
  /** Seconds back to the window that is drawn beside this one. */
  compare: number;
  sort: string;
}

/** The name of a metric's parameter: the first has no letter. */
export function parameter(name: string, letter: Letter): string {
  return letter === "a" ? name : `${name}.${letter}`;
}

export function read(params: URLSearchParams): Explored {
  const chosen = LETTERS.flatMap((letter): Chosen[] => {
    const metric = params.get(parameter("metric", letter));
    if (!metric) return [];
    return [
      {
        letter,
        metric,
        kind: params.get(parameter("kind", letter)) ?? undefined,
        fn: params.get(parameter("fn", letter)) ?? undefined,
        where: params.getAll(parameter("where", letter)),
      },
    ];
  });
  const formula = /^([a-f])([-+*/])([a-f])$/.exec(params.get("formula") ?? "");
  const has = (letter: string | undefined) => chosen.some((one) => one.letter === letter);
  const unit = params.get("unit");
  return {
    chosen,
    by: params.getAll("by").filter(Boolean),
    from: params.get("from") ?? "",
    to: params.get("to") ?? "",
    formula:
      formula && has(formula[1]) && has(formula[3])
        ? {
            left: formula[1] as Letter,
            operation: formula[2] as Operation,
            right: formula[3] as Letter,
          }
        : undefined,
    hidden: params.getAll("hide"),
    only: params.get("only") ?? "",
    log: params.get("scale") === "log",
    linear: params.get("scale") === "linear",
    fit: params.get("axis") === "data",
    unit: UNITS.find((known) => known === unit),
    compare: Math.max(0, Number(params.get("compare")) || 0),
    sort: params.get("order") ?? "",
  };
}

/** Words of a filter: `env:prod !status:5*`. */
export function words(text: string): string[] {
  return [...new Set(text.split(/\s+/).filter((word) => word && word !== "!"))];
}

export function title(group: Group): string {
  if (group.other) return "other";
  return group.tags.map(([key, value]) => `${key}:${value ?? "(none)"}`).join(" ");
}

export interface Drawn {
  label: string;
  values: (number | null)[];
  /** The function whose unit the values have; empty for ratios. */
  fn: string;
  metric: string;
  /** Of the earlier window. */
  isEarlier?: boolean;
}

/** The lines of one metric. */
export function lines(points: Points, one: Chosen, isAlone: boolean): Drawn[] {
  const name = isAlone ? "" : one.letter.toUpperCase();
  return points.groups.map((group) => ({
    label: [name, title(group) || one.metric].filter(Boolean).join(" "),
    values: group.values,
    fn: points.fn,
    metric: one.metric,
  }));
}

function apply(operation: Operation, left: number | null | undefined, right: number | null | undefined) {
  if (left === null || left === undefined || right === null || right === undefined) return null;
  switch (operation) {
    case "/":
      return right === 0 ? null : left / right;
    case "-":
      return left - right;
    case "+":
      return left + right;
    default:
      return left * right;
  }
}

/** A formula between the groups with the same tags; a metric of one line goes with each of the other's. */
export function combine(left: Points, right: Points, operation: Operation): Drawn[] {
  const rightAt = new Map(right.times.map((time, at) => [time, at]));
  const partner = (group: Group) =>
    right.groups.find((other) => other.other === group.other && title(other) === title(group)) ??
    (right.groups.length === 1 ? right.groups[0] : undefined);
  return left.groups.flatMap((group): Drawn[] => {
    const other = partner(group);
    if (!other) return [];
    const values = left.times.map((time, at) => {
      const there = rightAt.get(time);
      return there === undefined ? null : apply(operation, group.values[at], other.values[there]);
    });
    return [{ label: title(group) || "all", values, fn: "", metric: "" }];
  });
}

/** Values of points at other times, as far as they are the same. */
export function aligned(times: number[], points: Points): Points {
  const at = new Map(points.times.map((time, index) => [time, index]));
  const groups = points.groups.map((group) => ({
    ...group,
    values: times.map((time) => {
      const index = at.get(time);
      return index === undefined ? null : (group.values[index] ?? null);
    }),
  }));
  return { ...points, times, groups };
}

export interface Summary {
  last: number | null;
  min: number | null;
  max: number | null;
  mean: number | null;
}

export function summary(values: (number | null)[]): Summary {
  const known = values.filter((value): value is number => value !== null);
  if (known.length === 0) return { last: null, min: null, max: null, mean: null };
  return {
    last: known[known.length - 1] ?? null,
    min: Math.min(...known),
    max: Math.max(...known),
    mean: known.reduce((sum, value) => sum + value, 0) / known.length,
  };
}

/** The next window of the same length; `parts` of it to the right, or to the left if negative. */
export function panned(first: number, end: number, parts: number): { from: string; to: string } {
  const by = Math.round((end - first) * parts);
  return { from: String(first + by), to: String(end + by) };
}

/** A window around the same middle. */
export function zoomed(first: number, end: number, factor: number): { from: string; to: string } {
  const middle = (first + end) / 2;
  const half = Math.max(1, ((end - first) * factor) / 2);
  return { from: String(Math.floor(middle - half)), to: String(Math.ceil(middle + half)) };
}
