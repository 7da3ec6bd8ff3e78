import { describe, expect, test } from "vitest";
import type { Points } from "../src/api";
import { COLOURS, range } from "../src/chart";
import { aligned, combine, lines, panned, read, summary, words, zoomed } from "../src/explore";
import { formatter, unitOf, unitOfValues } from "../src/units";

const points = (times: number[], groups: [string, (number | null)[]][]): Points => ({
  metric: "m",
  kind: "counter",
  fn: "rate",
  step: 1,
  width: 1,
  times,
  groups: groups.map(([tag, values]) => ({
    tags: tag ? [["service", tag]] : [],
    other: false,
    series: 1,
    values,
  })),
  folded: 0,
  series: 1,
  held_from: 0,
});

test("the URL has everything, and what it has wrong is left out", () => {
  const explored = read(
    new URLSearchParams(
      "metric=errors&where=status:5*&where=!env:dev&metric.b=requests&fn.b=sum&by=service&by=env&formula=a/b&hide=x&scale=log&axis=data&unit=ratio&compare=300&order=max",
    ),
  );
  expect(explored.chosen).toEqual([
    { letter: "a", metric: "errors", kind: undefined, fn: undefined, where: ["status:5*", "!env:dev"] },
    { letter: "b", metric: "requests", kind: undefined, fn: "sum", where: [] },
  ]);
  expect(explored).toMatchObject({
    by: ["service", "env"],
    formula: { left: "a", operation: "/", right: "b" },
    hidden: ["x"],
    log: true,
    fit: true,
    unit: "ratio",
    compare: 300,
    sort: "max",
  });
  const wrong = read(new URLSearchParams("metric=a&formula=a/c&unit=parsecs&compare=-4"));
  expect(wrong).toMatchObject({ formula: undefined, unit: undefined, compare: 0 });
  expect(words(" env:prod  !env:dev ! env:prod")).toEqual(["env:prod", "!env:dev"]);
});

describe("a formula", () => {
  const errors = points(
    [1, 2, 3],
    [
      ["cart", [1, 0, null]],
      ["search", [4, 4, 4]],
    ],
  );

  test("goes group by group, and has no value where one is missing or the divisor is zero", () => {
    const requests = points(
      [2, 3, 4],
      [
        ["search", [8, 0, 1]],
        ["cart", [10, 10, 10]],
      ],
    );
    expect(combine(errors, requests, "/").map((line) => [line.label, line.values])).toEqual([
      ["service:cart", [null, 0, null]],
      ["service:search", [null, 0.5, null]],
    ]);
  });

  test("divides each group by the only line of the other", () => {
    const all = points([1, 2, 3], [["", [10, 10, 10]]]);
    expect(combine(errors, all, "-").map((line) => line.values)).toEqual([
      [-9, -10, null],
      [-6, -6, -6],
    ]);
    expect(
      combine(
        all,
        points(
          [1, 2, 3],
          [
            ["cart", [1, 1, 1]],
            ["x", [1, 1, 1]],
          ],
        ),
        "+",
      ),
    ).toEqual([]);
  });
});

test("lines of several metrics have letters, and the times of the first", () => {
  const one = { letter: "b", metric: "m", kind: undefined, fn: undefined, where: [] } as const;
  const moved = aligned([2, 3, 4], points([1, 2, 3], [["", [7, 8, 9]]]));
  expect(lines(moved, { ...one, where: [] }, false)[0]).toMatchObject({ label: "B m", values: [8, 9, null] });
  expect(lines(moved, { ...one, where: [] }, true)[0]?.label).toBe("m");
});

test("the legend sums up what is there", () => {
  expect(summary([null, 3, 1, null, 2, null])).toEqual({ last: 2, min: 1, max: 3, mean: 2 });
  expect(summary([null])).toEqual({ last: null, min: null, max: null, mean: null });
});

test("windows move and grow around their middle", () => {
  expect(panned(100, 200, -0.5)).toEqual({ from: "50", to: "150" });
  expect(zoomed(100, 200, 2)).toEqual({ from: "50", to: "250" });
  expect(zoomed(100, 101, 0.1)).toEqual({ from: "99", to: "102" });
});

test("units come from the end of the name", () => {
  expect(
    ["http.request.duration_seconds", "cache_bytes_total", "login.ms", "disk.used.percent", "bytesized"].map(
      unitOf,
    ),
  ).toEqual(["seconds", "bytes", "milliseconds", "percent", "none"]);
  expect(formatter("seconds", "p95")(0.25)).toBe("250 ms");
  expect(formatter("milliseconds", "avg")(1500)).toBe("1.5 s");
  expect(formatter("seconds", "rate")(12)).toBe("12/s");
  expect(formatter("bytes", "rate")(2048)).toBe("2 KiB/s");
  expect(formatter("ratio", "")(0.025)).toBe("2.5 %");
  expect(formatter("none", "avg")(null)).toBe("–");
  expect(["avg", "rate", "count"].map((fn) => unitOfValues("bytes", fn))).toEqual(["bytes", "bytes", "none"]);
  expect(unitOfValues("seconds", "rate")).toBe("none");
});

test("an axis begins at zero unless it covers the data", () => {
  expect(range(20, 40, false)).toEqual([0, 42]);
  expect(range(20, 40, true)).toEqual([19, 41]);
  expect(range(-4, -2, false)).toEqual([-4, 0]);
  expect(range(null, null, false)).toEqual([0, 1]);
});

test("every colour has a contrast of at least 3 to the ground of both themes", () => {
  const light = (hex: string) => {
    const part = (at: number) => {
      const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  };
  for (const colour of COLOURS) {
    for (const ground of ["#ffffff", "#12181e", "#f3f6f8", "#1a232c"]) {
      const [dark, bright] = [light(colour), light(ground)].sort((a, b) => a - b) as [number, number];
      expect((bright + 0.05) / (dark + 0.05), `${colour} on ${ground}`).toBeGreaterThanOrEqual(3);
    }
  }
});
