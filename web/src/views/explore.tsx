// One chart of up to six metrics, with a formula, groups, filters and a legend.

import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import type { Explanation, Kind, Metrics as MetricList, Params, Points, TagKey } from "../api";
import { Chart, COLOURS, type Line, useMedia } from "../chart";
import { usePolled, useQueries } from "../data";
import {
  aligned,
  type Chosen,
  combine,
  type Drawn,
  type Explored,
  LETTERS,
  type Letter,
  lines,
  OPERATIONS,
  panned,
  parameter,
  read,
  summary,
  words,
  zoomed,
} from "../explore";
import { clock, count, duration, exact, utc } from "../format";
import { common, HeatmapChart } from "../heatmap";
import { useKeys } from "../keys";
import { type Change, go, write } from "../route";
import { formatter, UNITS, unitOf, unitOfValues } from "../units";
import { OutputNames } from "../words";

const OF_SAMPLES = ["p50", "p95", "p99", "avg", "min", "max", "sum", "count", "rate", "heatmap"];
const FUNCTIONS: Record<Kind, string[]> = {
  counter: ["rate", "sum", "avg", "min", "max", "count", "last"],
  rate: ["sum", "avg", "min", "max", "last"],
  gauge: ["avg", "sum", "min", "max", "last", "count"],
  set: ["avg", "sum", "min", "max", "last"],
  distribution: OF_SAMPLES,
  histogram: OF_SAMPLES,
};
const WINDOWS = [
  ["", "all"],
  ["-5m", "5 min"],
  ["-15m", "15 min"],
  ["-1h", "1 h"],
] as const;
const EARLIER = [
  [60, "1 min earlier"],
  [300, "5 min earlier"],
  [900, "15 min earlier"],
  [3600, "1 h earlier"],
] as const;
const earlierBy = (seconds: number) =>
  EARLIER.find(([known]) => known === seconds)?.[1] ?? `${duration(seconds)} earlier`;
/** Rows of the table of values. */
const VALUES_MAX = 120;

const value = (event: Event) => (event.target as HTMLInputElement).value;

function request(one: Chosen, explored: Explored): Params {
  const { by, from, to } = explored;
  return { metric: one.metric, kind: one.kind, by, where: one.where, fn: one.fn, from, to };
}

export function Explorer({ params, flushes }: { params: URLSearchParams; flushes: number }) {
  const explored = useMemo(() => read(params), [params]);
  const { chosen, compare } = explored;
  const requests = chosen.map((one) => request(one, explored));
  const now = useQueries(requests, flushes, Boolean(explored.to));
  const first = now.data.find(Boolean);
  const start = first?.times[0] ?? 0;
  const end = (first?.times[first.times.length - 1] ?? 0) + (first?.step ?? 0);
  const earlierRequests =
    compare > 0 && first
      ? requests.map((one) => ({
          ...one,
          from: String(start - compare),
          to: String(end - compare),
          step: `${first.step}s`,
        }))
      : [];
  const before = useQueries(earlierRequests, flushes, Boolean(explored.to));
  const tags = useTags(chosen[0]?.metric, flushes);
  const drawn = useMemo(() => drawnLines(explored, now.data, before.data), [explored, now.data, before.data]);
  const heatmap = chosen.length === 1 ? first?.heatmap : undefined;
  const [cursor, setCursor] = useState<number | null>(null);
  const [showsValues, setShowsValues] = useState(false);
  const move = (to: { from: string; to: string }) => first && go(to);
  useKeys({
    "[": () => move(panned(start, end, -0.5)),
    "]": () => move(panned(start, end, 0.5)),
    "+": () => move(zoomed(start, end, 0.5)),
    "-": () => move(zoomed(start, end, 2)),
    u: () => history.back(),
    a: () => go({ from: undefined, to: undefined }),
    l: () => go({ scale: otherScale(explored, Boolean(heatmap)) }),
    "0": () => go({ axis: explored.fit ? undefined : "data" }),
    v: () => setShowsValues(!showsValues),
  });
  const shown = drawn.filter((line) => isShown(line, explored));
  const format = formatOf(explored, drawn[0]);
  return (
    <>
      <h1 class="name">{chosen.map((one) => one.metric).join(", ")}</h1>
      {chosen.map((one, at) => (
        <MetricBar key={one.letter} one={one} points={now.data[at]} isAlone={chosen.length === 1} />
      ))}
      <Options explored={explored} first={first} start={start} end={end} tags={tags} />
      {[...now.errors, ...before.errors].map((error) => (
        <p key={error} class="alarm" role="alert">
          {error}
        </p>
      ))}
      {chosen.map(
        (one, at) =>
          now.data[at]?.series === 0 && (
            <p key={one.letter} role="status">
              No context of {one.metric}
              {one.where.length > 0 && ` with ${one.where.join(" ")}`} is in this window.
            </p>
          ),
      )}
      {heatmap && first && (
        <Heatmaps
          now={first}
          before={compare > 0 ? before.data[0] : undefined}
          explored={explored}
          format={format}
        />
      )}
      {first && !heatmap && (
        <Chart
          times={first.times}
          lines={shown}
          height={320}
          format={format}
          log={explored.log}
          fit={explored.fit}
          binary={unitOfValues(unitOfLine(explored, drawn[0]), drawn[0]?.fn ?? "") === "bytes"}
          legend={false}
          onZoom={(from, to) => go({ from: String(from), to: String(to) })}
          onUndo={() => history.back()}
          onCursor={setCursor}
        />
      )}
      {first && !heatmap && (
        <Legend
          drawn={drawn}
          explored={explored}
          at={cursor}
          time={cursor === null ? undefined : first.times[cursor]}
        />
      )}
      {first && <Caption points={first} all={now.data} chosen={chosen} start={start} end={end} />}
      {first && !heatmap && (
        <details
          open={showsValues}
          onToggle={(event) => setShowsValues((event.target as HTMLDetailsElement).open)}
        >
          <summary>Values as a table</summary>
          {showsValues && <Values times={first.times} lines={shown} format={format} />}
        </details>
      )}
      {chosen.map((one, at) => (
        <Behind
          key={one.letter}
          one={one}
          kind={now.data[at]?.kind}
          isAlone={chosen.length === 1}
          by={explored.by}
          flushes={flushes}
          known={at === 0 ? tags : undefined}
        />
      ))}
    </>
  );
}

/** The tags of a metric. */
function useTags(metric: string | undefined, flushes: number): TagKey[] {
  const { data } = usePolled<{ tags: TagKey[] }>(metric ? "tags" : undefined, { metric }, 10, flushes);
  return data?.tags ?? [];
}

/** Charts are linear and heat maps logarithmic, unless the user wants otherwise. */
function otherScale({ log, linear }: Explored, isHeatmap: boolean): string | undefined {
  if (isHeatmap) return linear ? undefined : "linear";
  return log ? undefined : "log";
}

/** The heat map, and below it that of the window it is compared with, with the same values and colours. */
function Heatmaps(props: {
  now: Points;
  before: Points | undefined;
  explored: Explored;
  format: (value: number | null | undefined) => string;
}) {
  const { now, before, explored, format } = props;
  const both = [now.heatmap, before?.heatmap].flatMap((heatmap) => heatmap ?? []);
  const shared = common(both);
  // An axis of a linear scale begins at zero, like that of a chart.
  if (explored.linear && !explored.fit) {
    shared.low = Math.min(0, shared.low);
    shared.high = Math.max(0, shared.high);
  }
  const of = (points: Points, title?: string) =>
    points.heatmap && (
      <HeatmapChart
        times={points.times}
        heatmap={points.heatmap}
        shared={shared}
        isLog={!explored.linear}
        binary={explored.unit === "bytes" || (!explored.unit && unitOf(now.metric) === "bytes")}
        height={before ? 240 : 320}
        format={format}
        title={title}
      />
    );
  return (
    <>
      {of(now)}
      {before && of(before, earlierBy(explored.compare))}
    </>
  );
}

type ColouredLine = Drawn & Line;

function drawnLines(
  explored: Explored,
  now: (Points | undefined)[],
  before: (Points | undefined)[],
): ColouredLine[] {
  const first = now.find(Boolean);
  if (!first) return [];
  const { chosen, formula, compare } = explored;
  const of = (all: (Points | undefined)[], letter: Letter) => {
    const points = all[chosen.findIndex((one) => one.letter === letter)];
    return points && aligned(first.times, points);
  };
  const build = (all: (Points | undefined)[]): Drawn[] => {
    if (formula) {
      const left = of(all, formula.left);
      const right = of(all, formula.right);
      if (!left || !right) return [];
      const name = `${formula.left} ${formula.operation} ${formula.right}`.toUpperCase();
      return combine(left, right, formula.operation).map((line) => ({
        ...line,
        label: line.label === "all" ? name : `${name} ${line.label}`,
      }));
    }
    return chosen.flatMap((one) => {
      const points = of(all, one.letter);
      return points ? lines(points, one, chosen.length === 1) : [];
    });
  };
  const main = build(now).map((line, colour) => ({ ...line, colour }));
  if (compare === 0) return main;
  const shifted = before.map(
    (points) => points && { ...points, times: points.times.map((time) => time + compare) },
  );
  const earlier = build(shifted).map((line) => {
    const same = main.find((other) => other.label === line.label);
    const label = `${line.label}, ${earlierBy(compare)}`;
    return { ...line, label, colour: same?.colour ?? 0, isEarlier: true };
  });
  return [...main, ...earlier];
}

function isShown(line: Drawn, { only, hidden }: Explored): boolean {
  return only ? line.label === only || line.label.startsWith(`${only}, `) : !hidden.includes(line.label);
}

function unitOfLine(explored: Explored, line: Drawn | undefined) {
  return explored.unit ?? (line?.metric ? unitOf(line.metric) : "none");
}

function formatOf(explored: Explored, line: Drawn | undefined) {
  return formatter(unitOfLine(explored, line), line?.fn ?? "");
}

/** The address of the list that the user came from. */
const list = { address: write("metrics", {}) };
export function rememberList(address: string) {
  list.address = address;
}

function MetricBar({ one, points, isAlone }: { one: Chosen; points: Points | undefined; isAlone: boolean }) {
  const set = (name: string, to: string | string[] | undefined) => go({ [parameter(name, one.letter)]: to });
  const remove = () => go(without(one.letter));
  return (
    <div class="bar metric">
      {isAlone ? <a href={list.address}>← metrics</a> : <b aria-hidden="true">{one.letter.toUpperCase()}</b>}
      {!isAlone && <span class="name">{one.metric}</span>}
      {points && (
        <label>
          {isAlone ? "Show" : `Show of ${one.letter.toUpperCase()}`}{" "}
          <select value={points.fn} onChange={(event) => set("fn", value(event))}>
            {[...new Set([points.fn, ...FUNCTIONS[points.kind]])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <Filter where={one.where} onChange={(where) => set("where", where)} />
      {points && <span class="quiet">{points.kind}</span>}
      {!isAlone && (
        <button type="button" onClick={remove} aria-label={`remove ${one.metric}`}>
          ✕
        </button>
      )}
    </div>
  );
}

/** The parameters without one metric. Those behind it keep their letters, but one must be the first. */
function without(letter: Letter): Change {
  const names = ["metric", "kind", "fn", "where"];
  const gone: Change = { formula: undefined, hide: undefined, only: undefined };
  for (const name of names) gone[parameter(name, letter)] = undefined;
  if (letter !== "a") return gone;
  const { params } = { params: new URLSearchParams(location.hash.split("?")[1] ?? "") };
  const next = LETTERS.find((other) => other !== "a" && params.get(parameter("metric", other)));
  if (!next) return gone;
  for (const name of names) {
    gone[name] = params.getAll(parameter(name, next));
    gone[parameter(name, next)] = undefined;
  }
  return gone;
}

function Filter({ where, onChange }: { where: string[]; onChange: (where: string[]) => void }) {
  const [text, setText] = useState(where.join(" "));
  const known = where.join(" ");
  // Before the next event: a later effect would undo what was typed meanwhile.
  useLayoutEffect(() => setText(known), [known]);
  return (
    <label class="grow">
      Only{" "}
      <input
        class="filter"
        type="search"
        value={text}
        placeholder="env:prod status:5* !env:dev"
        onInput={(event) => setText(value(event))}
        onChange={(event) => onChange(words(value(event)))}
      />
    </label>
  );
}

function Options(props: {
  explored: Explored;
  first: Points | undefined;
  start: number;
  end: number;
  tags: TagKey[];
}) {
  const { explored, first, start, end } = props;
  const { chosen, by, from, to, formula } = explored;
  const isHeatmap = chosen.length === 1 && Boolean(first?.heatmap);
  // A narrow screen has the chart first; what is above it is one touch away.
  const wide = !useMedia("(max-width: 720px)");
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details
      class="options"
      open={wide || isOpen}
      onToggle={(event) => setIsOpen((event.target as HTMLDetailsElement).open)}
    >
      <summary>Metrics, groups, scale and time</summary>
      <div class="bar">
        <AddMetric taken={chosen} />
        {chosen.length > 1 && (
          <label>
            Formula{" "}
            <select
              value={formula ? formula.left + formula.operation + formula.right : ""}
              onChange={(event) => go({ formula: value(event), hide: undefined, only: undefined })}
            >
              <option value="">none</option>
              {formulas(chosen).map((one) => (
                <option key={one} value={one}>
                  {[...one].join(" ").toUpperCase()}
                </option>
              ))}
            </select>
          </label>
        )}
        <GroupBy tags={props.tags} by={by} />
        <label>
          Unit{" "}
          <select value={explored.unit ?? ""} onChange={(event) => go({ unit: value(event) })}>
            <option value="">by name</option>
            {UNITS.map((unit) => (
              <option key={unit}>{unit}</option>
            ))}
          </select>
        </label>
        <label>
          Compare{" "}
          <select value={explored.compare || ""} onChange={(event) => go({ compare: value(event) })}>
            <option value="">with nothing</option>
            {EARLIER.map(([seconds, title]) => (
              <option key={seconds} value={seconds}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          <input
            type="checkbox"
            checked={isHeatmap ? !explored.linear : explored.log}
            onChange={() => go({ scale: otherScale(explored, isHeatmap) })}
          />{" "}
          log scale
        </label>
        <label>
          <input
            type="checkbox"
            checked={explored.fit || (isHeatmap && !explored.linear)}
            disabled={isHeatmap && !explored.linear}
            onChange={() => go({ axis: explored.fit ? undefined : "data" })}
          />{" "}
          axis from the data
        </label>
      </div>
      <div class="bar">
        <span class="choices">
          {WINDOWS.map(([window, title]) => (
            <button
              type="button"
              key={title}
              aria-pressed={from === window && !to}
              onClick={() => go({ from: window || undefined, to: undefined })}
            >
              {title}
            </button>
          ))}
          {first && (
            <>
              <button type="button" aria-label="earlier" onClick={() => go(panned(start, end, -0.5))}>
                ‹
              </button>
              <button type="button" aria-label="later" onClick={() => go(panned(start, end, 0.5))}>
                ›
              </button>
              <button type="button" aria-label="zoom out" onClick={() => go(zoomed(start, end, 2))}>
                −
              </button>
              <button type="button" aria-label="zoom in" onClick={() => go(zoomed(start, end, 0.5))}>
                +
              </button>
              <button type="button" onClick={() => history.back()}>
                undo
              </button>
            </>
          )}
        </span>
        {first && <Range start={start} end={end} />}
      </div>
    </details>
  );
}

function formulas(chosen: Chosen[]): string[] {
  return OPERATIONS.flatMap((operation) =>
    chosen.flatMap((left, at) =>
      chosen
        .filter((right, other) => (operation === "/" || operation === "-" ? right !== left : other > at))
        .map((right) => left.letter + operation + right.letter),
    ),
  );
}

function AddMetric({ taken }: { taken: Chosen[] }) {
  const [text, setText] = useState("");
  const path = text.length > 1 ? "metrics" : undefined;
  const { data } = usePolled<MetricList>(path, { match: text, limit: 20, details: 0 }, 0);
  // Enter may come before the suggestions, and a name may not be among the first of them.
  const [entered, setEntered] = useState("");
  const asked = { name: entered, limit: 1, details: 0 };
  const { data: found } = usePolled<MetricList>(entered ? "metrics" : undefined, asked, 0);
  const letter = LETTERS.find((letter) => !taken.some((one) => one.letter === letter));
  const add = (name: string, list: MetricList | undefined) => {
    if (!letter || !list?.metrics.some((metric) => metric.name === name)) return;
    setText("");
    setEntered("");
    go({ [parameter("metric", letter)]: name });
  };
  useEffect(() => add(entered, found), [entered, found]);
  if (!letter) return null;
  return (
    <label>
      Add a metric{" "}
      <input
        list="metrics"
        value={text}
        placeholder="name"
        onInput={(event) => {
          setText(value(event));
          setEntered("");
          add(value(event), data);
        }}
        onKeyDown={(event) => event.key === "Enter" && setEntered(value(event))}
      />
      <datalist id="metrics">
        {data?.metrics.map((metric) => (
          <option key={`${metric.name} ${metric.kind}`} value={metric.name} />
        ))}
      </datalist>
    </label>
  );
}

function GroupBy({ tags, by }: { tags: TagKey[]; by: string[] }) {
  const keys = tags.filter((key) => !by.includes(key.key));
  const set = (next: string[]) => go({ by: next, hide: undefined, only: undefined });
  return (
    <span class="choices">
      <label>
        Group by{" "}
        <select value="" onChange={(event) => set([...by, value(event)])}>
          <option value="">{by.length > 0 ? "another tag" : "nothing"}</option>
          {keys.map((key) => (
            <option key={key.key} value={key.key}>
              {key.key} ({exact(key.values_total)})
            </option>
          ))}
        </select>
      </label>
      {by.map((key) => (
        <button type="button" key={key} onClick={() => set(by.filter((other) => other !== key))}>
          {key} ✕
        </button>
      ))}
    </span>
  );
}

/** As `datetime-local` has it: local time. */
function local(seconds: number): string {
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function Range({ start, end }: { start: number; end: number }) {
  const set = (name: string, other: Change) => (event: Event) => {
    const seconds = Math.floor(new Date(value(event)).getTime() / 1000);
    if (Number.isFinite(seconds)) go({ ...other, [name]: String(seconds) });
  };
  return (
    <span class="choices">
      <label>
        From{" "}
        <input
          type="datetime-local"
          step="1"
          value={local(start)}
          onChange={set("from", { to: String(end) })}
        />
      </label>
      <label>
        to{" "}
        <input
          type="datetime-local"
          step="1"
          value={local(end)}
          onChange={set("to", { from: String(start) })}
        />
      </label>
    </span>
  );
}

const COLUMNS = ["last", "min", "max", "mean"] as const;

function Legend(props: {
  drawn: ColouredLine[];
  explored: Explored;
  at: number | null;
  time: number | undefined;
}) {
  const { drawn, explored, at, time } = props;
  const { hidden, only, sort } = explored;
  const rows = useMemo(() => drawn.map((line) => ({ line, sums: summary(line.values) })), [drawn]);
  const column = COLUMNS.find((name) => name === sort);
  const sorted = column
    ? [...rows].sort((a, b) => (b.sums[column] ?? -Infinity) - (a.sums[column] ?? -Infinity))
    : rows;
  const toggle = (label: string) =>
    go({
      hide: hidden.includes(label) ? hidden.filter((one) => one !== label) : [...hidden, label],
      only: undefined,
    });
  return (
    // It scrolls, so the keyboard must reach it.
    <section class="scroll legend" tabIndex={0} aria-label="legend">
      <table>
        <thead>
          <tr>
            <th scope="col">
              <button type="button" class="plain" onClick={() => go({ order: undefined })}>
                line
              </button>
            </th>
            {COLUMNS.map((name) => (
              <th scope="col" class="number" key={name} aria-sort={sort === name ? "descending" : "none"}>
                <button
                  type="button"
                  class="plain"
                  onClick={() => go({ order: sort === name ? undefined : name })}
                >
                  {name}
                  {sort === name ? " ↓" : ""}
                </button>
              </th>
            ))}
            <th scope="col" class="number">
              {time === undefined ? "cursor" : clock(time)}
            </th>
            <th scope="col">
              <span class="hidden">only this line</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {sorted.map(({ line, sums }) => {
            const format = formatOf(explored, line);
            const isOn = isShown(line, explored);
            return (
              <tr key={line.label} class={isOn ? "" : "off"}>
                <th scope="row">
                  <button
                    type="button"
                    class="plain name"
                    aria-pressed={isOn}
                    onClick={() => toggle(line.label)}
                  >
                    <svg class="swatch" width="14" height="10" aria-hidden="true">
                      <path
                        d="M0 5h14"
                        stroke={COLOURS[(line.colour ?? 0) % COLOURS.length]}
                        stroke-width="3"
                        stroke-dasharray={line.isEarlier ? "2 3" : undefined}
                      />
                    </svg>{" "}
                    {line.label}
                  </button>
                </th>
                {COLUMNS.map((name) => (
                  <td class="number" key={name}>
                    {format(sums[name])}
                  </td>
                ))}
                <td class="number">{at === null ? "" : format(line.values[at])}</td>
                <td>
                  {drawn.length > 1 && (
                    <button
                      type="button"
                      class="small"
                      aria-pressed={only === line.label}
                      onClick={() =>
                        go({ only: only === line.label ? undefined : line.label, hide: undefined })
                      }
                    >
                      only
                    </button>
                  )}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

function Caption(props: {
  points: Points;
  all: (Points | undefined)[];
  chosen: Chosen[];
  start: number;
  end: number;
}) {
  const { points, all, chosen, start, end } = props;
  const contexts = chosen.flatMap((one, at) => {
    const of = chosen.length > 1 ? `${one.letter.toUpperCase()}: ` : "";
    const series = all[at]?.series;
    return series === undefined ? [] : [of + count(series, "contexts")];
  });
  return (
    <p class="quiet">
      {contexts.join(", ")}, one point per {duration(points.step)}, from{" "}
      <time title={utc(start)}>{clock(start)}</time> to <time title={utc(end)}>{clock(end)}</time>. The
      history begins at <time title={utc(points.held_from)}>{clock(points.held_from)}</time>.
      {points.folded > 0 && ` “other” combines ${count(points.folded, "small groups")}.`}
    </p>
  );
}

/** A table for readers who cannot see the chart: the newest values first. */
function Values(props: { times: number[]; lines: ColouredLine[]; format: (value: number | null) => string }) {
  const { times, lines } = props;
  const first = Math.max(0, times.length - VALUES_MAX);
  const rows = times.slice(first).map((time, at) => ({ time, at: first + at }));
  return (
    <section class="scroll" tabIndex={0} aria-label="values">
      <table>
        <thead>
          <tr>
            <th scope="col">time</th>
            {lines.map((line) => (
              <th scope="col" class="number" key={line.label}>
                {line.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.reverse().map(({ time, at }) => (
            <tr key={time}>
              <th scope="row">
                <time title={utc(time)}>{clock(time)}</time>
              </th>
              {lines.map((line) => (
                <td class="number" key={line.label}>
                  {props.format(line.values[at] ?? null)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const TYPES: Record<Kind, string> = {
  counter: "c",
  rate: "c",
  gauge: "g",
  set: "s",
  distribution: "d",
  histogram: "h",
};

/** A message of the chosen series, as far as the filter names it. */
function messageOf(one: Chosen, kind: Kind): string {
  const tags = one.where.filter((tag) => !tag.startsWith("!") && !/[*?]/.test(tag));
  return `${one.metric}:1|${TYPES[kind]}${tags.length > 0 ? `|#${tags.join(",")}` : ""}`;
}

/** Facts about the shown series: contexts, senders, names at the outputs, and tags. */
function Behind(props: {
  one: Chosen;
  kind: Kind | undefined;
  isAlone: boolean;
  by: string[];
  flushes: number;
  /** Its tags, if they have been fetched. */
  known: TagKey[] | undefined;
}) {
  const { one, kind, isAlone, by, flushes, known } = props;
  const fetched = useTags(known ? undefined : one.metric, flushes);
  const tags = known ?? fetched;
  const [isOpen, setIsOpen] = useState(false);
  const of = isAlone ? "" : ` of ${one.letter.toUpperCase()}`;
  const keys = tags.map((key) => key.key);
  if (!kind) return null;
  return (
    <>
      <p class="choices">
        {isAlone && keys.length > 0 && (
          <button type="button" onClick={() => go({ by: keys, hide: undefined, only: undefined })}>
            a line for each context
          </button>
        )}
        <a href={write("tail", { match: one.metric })}>messages and senders{of} as they arrive</a>
      </p>
      <details open={isOpen} onToggle={(event) => setIsOpen((event.target as HTMLDetailsElement).open)}>
        <summary>Names at the outputs{of}</summary>
        {isOpen && <Names line={messageOf(one, kind)} />}
      </details>
      {tags.length > 0 && <Tags one={one} tags={tags} of={of} isAlone={isAlone} by={by} />}
    </>
  );
}

function Names({ line }: { line: string }) {
  const { data, error } = usePolled<Explanation>("explain", { line }, 0);
  if (error) return <p class="quiet">{error}</p>;
  return <OutputNames outputs={data?.outputs ?? []} />;
}

function Tags(props: { one: Chosen; tags: TagKey[]; of: string; isAlone: boolean; by: string[] }) {
  const { one, tags, of, isAlone, by } = props;
  const { where } = one;
  const set = (next: string[]) => go({ [parameter("where", one.letter)]: next });
  return (
    <section>
      <h2>Tags{of}</h2>
      {tags.map((key) => (
        <details key={key.key} open={isAlone && key.values_total <= 10}>
          <summary>
            <b>{key.key}</b> {count(key.values_total, "values")}, {count(key.contexts, "contexts")}
            {by.includes(key.key) && " · grouped"}
          </summary>
          <p class="choices">
            {key.values.map((value) => {
              const filter = value.value ? `${key.key}:${value.value}` : key.key;
              const isOn = where.includes(filter);
              return (
                <button
                  type="button"
                  key={value.value}
                  aria-pressed={isOn}
                  title="with Shift: leave it out"
                  onClick={(event) => {
                    const rest = where.filter((other) => other !== filter && other !== `!${filter}`);
                    set(isOn ? rest : [...rest, event.shiftKey ? `!${filter}` : filter]);
                  }}
                >
                  {value.value || "(no value)"} <span class="quiet">{exact(value.contexts)}</span>
                </button>
              );
            })}
          </p>
        </details>
      ))}
    </section>
  );
}
