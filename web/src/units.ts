// Units: from the suffix of a metric's name, or as the user chooses.

import { bytes, duration, number } from "./format";

export const UNITS = ["none", "seconds", "milliseconds", "bytes", "percent", "ratio"] as const;
export type Unit = (typeof UNITS)[number];

const SUFFIXES: [RegExp, Unit][] = [
  [/(^|[._])(seconds|secs|sec|duration_s)$/, "seconds"],
  [/(^|[._])(ms|millis|milliseconds|msec)$/, "milliseconds"],
  [/(^|[._])(bytes|octets)$/, "bytes"],
  [/(^|[._])(percent|pct)$/, "percent"],
  [/(^|[._])ratio$/, "ratio"],
];

/** The unit that a name ends in, without the endings of counters. */
export function unitOf(name: string): Unit {
  const base = name.toLowerCase().replace(/[._](total|count|sum)$/, "");
  return SUFFIXES.find(([pattern]) => pattern.test(base))?.[1] ?? "none";
}

/** Counts of samples have no unit. */
export function unitOfValues(unit: Unit, fn: string): Unit {
  return fn === "count" || (fn === "rate" && unit !== "bytes") ? "none" : unit;
}

/** A rate has its unit per second. */
export function formatter(unit: Unit, fn: string): (value: number | null | undefined) => string {
  const per = fn === "rate" ? "/s" : "";
  const shown = unitOfValues(unit, fn);
  return (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    return `${inUnit(value, shown)}${per}`;
  };
}

function inUnit(value: number, unit: Unit): string {
  const sign = value < 0 ? "-" : "";
  switch (unit) {
    case "seconds":
      return value === 0 ? "0 s" : sign + duration(Math.abs(value));
    case "milliseconds":
      return value === 0 ? "0 ms" : sign + duration(Math.abs(value) / 1000);
    case "bytes":
      return sign + bytes(Math.abs(value));
    case "percent":
      return `${number(value)} %`;
    case "ratio":
      return `${number(value * 100)} %`;
    default:
      return number(value);
  }
}
