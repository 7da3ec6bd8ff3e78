import { describe, expect, test } from "vitest";
import { bytes, count, duration, exact, number } from "../src/format";

describe("numbers have three digits and an SI prefix", () => {
  test.each([
    [0, "0"],
    [1, "1"],
    [0.5, "0.5"],
    [999, "999"],
    [999.6, "1k"],
    [12_345, "12.3k"],
    [1_000_000, "1M"],
    [-2_500, "-2.5k"],
    [0.0071428, "0.00714"],
    [0.00012, "0.00012"],
    [-0.00999999, "-0.01"],
    [0.0000061, "0.0000061"],
    [0.00000012345, "1.23e-7"],
    [1e18, "1000P"],
    [null, "–"],
  ])("%s", (value, text) => expect(number(value)).toBe(text));
});

test("sizes and durations have units", () => {
  expect([0, 1023, 1024, 5 * 1024 * 1024].map(bytes)).toEqual(["0 B", "1023 B", "1 KiB", "5 MiB"]);
  expect([0, 0.00002, 0.02, 5, 600, 7200, 400_000].map(duration)).toEqual([
    "0 s",
    "20 µs",
    "20 ms",
    "5 s",
    "10 min",
    "2 h",
    "5 d",
  ]);
  expect(exact(1234567)).toBe("1\u2009234\u2009567");
});

test("one thing has no plural", () => {
  const one = ["messages", "series", "flushes", "processes", "aliases", "tag keys", "packets and messages"];
  expect(one.map((unit) => count(1, unit))).toEqual([
    "1 message",
    "1 series",
    "1 flush",
    "1 process",
    "1 alias",
    "1 tag key",
    "1 packet or message",
  ]);
  expect([0, 2, 1000].map((number) => count(number, "messages"))).toEqual([
    "0 messages",
    "2 messages",
    "1\u2009000 messages",
  ]);
});
