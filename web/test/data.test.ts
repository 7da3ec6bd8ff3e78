import { describe, expect, test } from "vitest";
import type { BookSeries, Books, Loss } from "../src/api";
import { path } from "../src/chart";
import { append, column, withUnchanged } from "../src/data";
import { divide, remember, risenAt } from "../src/losses";
import { parse, write } from "../src/route";
import { describeShare, prepend } from "../src/views/tail";

const series = (
  name: string,
  tags: [string, string][],
  values: (number | null)[],
  kind: BookSeries["kind"] = "counter",
): BookSeries => ({ name, kind, tags, values });

describe("books", () => {
  const old: Books = { step: 1, times: [10, 11, 12], series: [series("a", [], [1, 2, 3])] };

  test("newer ones go behind older ones, and seconds that are missing stay empty", () => {
    const more: Books = { step: 1, times: [14], series: [series("a", [], [5]), series("b", [], [7])] };
    const all = append(old, more, 4);
    expect(all.times).toEqual([11, 12, 13, 14]);
    expect(all.series.map((one) => one.values)).toEqual([
      [2, 3, null, 5],
      [null, null, null, 7],
    ]);
    expect(append(old, { step: 1, times: [], series: [] }, 4)).toBe(old);
  });

  test("an answer that arrives after a newer event does not move the window back", () => {
    const all = append(old, { step: 1, times: [9, 10], series: [series("b", [], [4, 5])] }, 4);
    expect(all.times).toEqual([9, 10, 11, 12]);
    expect(all.series.map((one) => one.values)).toEqual([
      [null, 1, 2, 3],
      [4, 5, null, null],
    ]);
  });

  test("a counter that an event leaves out is 0, and a gauge is what it was", () => {
    const known: Books = { ...old, series: [...old.series, series("g", [], [1, 2, null], "gauge")] };
    const event: Books = { step: 1, times: [13], series: [series("b", [], [7])] };
    const all = append(known, withUnchanged(known, event), 4);
    expect(all.series.map((one) => one.values)).toEqual([
      [1, 2, 3, 0],
      [1, 2, null, 2],
      [null, null, null, 7],
    ]);
  });

  test("a column is the sum of the series that fit", () => {
    const books: Books = {
      step: 1,
      times: [1, 2],
      series: [
        series("a", [["l", "x"]], [1, null]),
        series("a", [["l", "y"]], [2, null]),
        series("b", [], [9, 9]),
      ],
    };
    expect(column(books, "a")).toEqual([3, null]);
    expect(column(books, "a", { l: "y" })).toEqual([2, null]);
    expect(column(books, "none")).toEqual([null, null]);
  });
});

test("a loss of the last minutes is told from earlier ones by the books", () => {
  const loss = (place: string, count: number, isCounter = true): Loss => ({
    series: "dropped",
    labels: [
      ["reason", "full"],
      ["listener", place],
    ],
    place,
    unit: "packets",
    meaning: "Dropped.",
    count,
    is_counter: isCounter,
    remedy: "Raise `memory`.",
  });
  const of = (place: string, values: (number | null)[]) =>
    series(
      "dropped",
      [
        ["listener", place],
        ["reason", "full"],
      ],
      values,
    );
  const books: Books = {
    step: 1,
    times: [1, 2, 3, 4],
    series: [
      of("udp", [0, 2, null, 3]),
      of("uds", [0, 0, 0, 0]),
      series("received", [["listener", "udp"]], [9, 9, 9, 9]),
    ],
  };
  const { recent, earlier } = divide([loss("uds", 7), loss("udp", 12), loss("tcp", 2, false)], books);
  expect(recent.map((one) => [one.place, one.recent, one.count])).toEqual([
    ["udp", 5, 12],
    ["tcp", 2, 2],
  ]);
  expect(earlier.map((one) => [one.place, one.count])).toEqual([["uds", 7]]);
});

test("a loss of an output is recent before its bucket is in the books", () => {
  const loss = (count: number): Loss => ({
    series: "weir_output_dropped_total",
    labels: [["output", "graphite"]],
    place: "graphite",
    unit: "points",
    meaning: "Dropped.",
    count,
    is_counter: true,
    remedy: "Set `disk_path`.",
  });
  const books: Books = { step: 1, times: [1, 2], series: [series("received", [], [9, 9])] };
  const answers = remember([], [loss(100)], 1000, 300);
  expect(divide([loss(100)], books, answers).recent).toEqual([]);
  const later = remember(answers, [loss(130)], 1005, 300);
  expect(divide([loss(130)], books, later).recent.map((one) => one.recent)).toEqual([30]);
  // The window has moved on.
  const much = remember(later, [loss(130)], 1306, 300);
  expect(divide([loss(130)], books, much).recent).toEqual([]);
  // The first loss of its kind.
  const none = remember(remember([], [], 1000, 300), [loss(7)], 1005, 300);
  expect(divide([loss(7)], books, none).recent.map((one) => one.recent)).toEqual([7]);
});

test("the address holds what is shown", () => {
  const address = write("metrics", { metric: "a.b#c", where: ["k:v&w", "x:y"], by: undefined });
  const route = parse(address);
  expect(route.view).toBe("metrics");
  expect(route.params.get("metric")).toBe("a.b#c");
  expect(route.params.getAll("where")).toEqual(["k:v&w", "x:y"]);
  expect(parse("").view).toBe("overview");
});

test("a sparkline has gaps where there are no points", () => {
  expect(path([0, 1, null, 1], 30, 10)).toBe("M0.0 9.0h.1L10.0 1.0M30.0 1.0h.1");
  expect(path([null], 30, 10)).toBe("");
});

describe("tail", () => {
  test("the newest come first, and no more than are kept", () => {
    expect(prepend([3, 2, 1], [4, 5], 4)).toEqual([5, 4, 3, 2]);
    expect(prepend([1], [], 4)).toEqual([1]);
  });

  test("the share of shown messages is stated", () => {
    const share = { messages: 50_000, looked_at: 5000, matched: 5000, shown: 100, share: 0.002 };
    expect(describeShare(share)).toContain("0.2 % of those that match are shown");
    expect(describeShare({ ...share, share: 1 })).toContain("all that match");
    expect(describeShare(undefined)).toContain("as they arrive");
  });
});

test("losses are asked for again when one rises", () => {
  const counter = (name: string, values: (number | null)[]): BookSeries => ({
    name,
    kind: "counter",
    tags: [],
    values,
  });
  const times = [101, 102, 103, 104, 105];
  const at = (values: (number | null)[]) =>
    risenAt({ step: 1, times, series: [counter("received", [9, 9, 9, 9, 9]), counter("lost", values)] }, [
      "received",
    ]);
  expect(at([0, 0, 0, 0, 0])).toBeUndefined();
  expect(at([null, null, 0, null, null])).toBeUndefined();
  expect(at([3, 0, 0, 0, 0])).toBe(101);
  expect(at([0, 3, 0, 0, 0])).toBe(102);
  expect(at([0, 3, 1, 1, 0])).toBe(104);
  expect(at([0, 3, 1, 1, 1])).toBe(105);
});
