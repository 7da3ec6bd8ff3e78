import { describe, expect, test } from "vitest";
import type { Heatmap } from "../src/api";
import { common, labels, linear, logarithm, timeLabels } from "../src/heatmap";

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

  test("labels are round and do not touch", () => {
    const of = (low: number, high: number, isLog: boolean, binary = false, apart = 0.1) =>
      labels(
        { low, high, smallest: Math.min(...[low, high].map(Math.abs).filter(Boolean)) },
        isLog,
        binary,
        apart,
      );
    expect(of(4.9, 152, true)).toEqual([5, 10, 20, 50, 100]);
    expect(of(0.0031, 1900, true)).toEqual([0.01, 0.1, 1, 10, 100, 1000]);
    expect(of(31, 47, true).map(Math.round)).toEqual([35, 40, 45]);
    expect(of(-120, 130, true, false, 0.05)).toEqual([-120, 0, 120]);
    expect(of(900, 5000, true, true)).toEqual([1024, 2048, 4096]);
    expect(of(1024, 2 ** 30, true, true)).toEqual([2 ** 10, 2 ** 20, 2 ** 30]);
    expect(of(0, 147, false)).toEqual([0, 20, 40, 60, 80, 100, 120, 140]);
    expect(of(0, 5000, false, true, 0.2)).toEqual([0, 1024, 2048, 3072, 4096]);
    expect(of(7, 7, true)).toEqual([7]);
    for (const high of [1.1, 3, 42, 1e4, 1e9]) {
      const heights = of(1, high, true).map((value) => logarithm(value, 1) / logarithm(high, 1));
      expect(heights.length).toBeGreaterThan(1);
      expect(heights.length).toBeLessThanOrEqual(11);
    }
  });

  test("times are round", () => {
    const times = Array.from({ length: 250 }, (_, at) => 1_700_000_014 + at);
    const shown = timeLabels(times, 6).map((at) => times[at]);
    expect(shown).toEqual([60, 120, 180, 240].map((later) => 1_700_000_000 - 20 + later));
    expect(timeLabels([1_700_000_014], 6)).toEqual([0]);
    expect(timeLabels([], 6)).toEqual([]);
    expect(timeLabels([14, 24, 34, 44], 2).map((at) => [14, 24, 34, 44][at])).toEqual([24, 34]);
  });

  test("a logarithm grows on both sides of zero", () => {
    const values = [-8, -1, -0.5, 0, 0.5, 1, 8].map((value) => logarithm(value, 0.5));
    expect(values).toEqual([...values].sort((a, b) => a - b));
    expect(new Set(values).size).toBe(7);
    expect(values[3]).toBe(0);
    expect(values[6]).toBeCloseTo(-(values[0] ?? 0));
  });
});
