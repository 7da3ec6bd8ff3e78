import { describe, expect, test } from "vitest";
import type { Heatmap } from "../src/api";
import { common, linear, logarithm } from "../src/heatmap";

const map: Heatmap = {
  rows: [
    [1, 2],
    [2, 4],
    [4, 8],
  ],
  counts: [[8, 0, 8], [], [0, 3, 1]],
};

const sums = (heatmap: Heatmap) =>
  heatmap.counts.map((column) => column.reduce((sum, number) => sum + number, 0));

describe("heat maps", () => {
  test("a linear scale has rows of equal height and the same samples", () => {
    const of = linear(map, 0, 8, 4);
    expect(of.rows).toEqual([
      [0, 2],
      [2, 4],
      [4, 6],
      [6, 8],
    ]);
    expect(of.counts).toEqual([[8, 0, 4, 4], [], [0, 3, 0.5, 0.5]]);
    expect(sums(linear(map, 0, 8, 7)).map(Math.round)).toEqual([16, 0, 4]);
    const zero: Heatmap = { rows: [[0, 0]], counts: [[5]] };
    expect(sums(linear(zero, -1, 1, 4))).toEqual([5]);
    expect(linear(zero, 0, 0)).toBe(zero);
  });

  test("two that are compared have the same bounds and colours", () => {
    const earlier: Heatmap = { rows: [[-3, 0.5]], counts: [[40]] };
    expect(common([map, earlier])).toEqual({ low: -3, high: 8, smallest: 0.5, most: 40 });
    expect(common([])).toEqual({ low: 0, high: 1, smallest: 1, most: 1 });
  });

  test("a logarithm grows on both sides of zero", () => {
    const values = [-8, -1, -0.5, 0, 0.5, 1, 8].map((value) => logarithm(value, 0.5));
    expect(values).toEqual([...values].sort((a, b) => a - b));
    expect(new Set(values).size).toBe(7);
    expect(values[3]).toBe(0);
    expect(values[6]).toBeCloseTo(-(values[0] ?? 0));
  });
});
