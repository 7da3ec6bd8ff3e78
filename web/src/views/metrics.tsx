// The list of metrics with a search, and the chart of one metric.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Kind, Metric, Metrics as MetricList, Points, TagKey } from "../api";
import { Chart, HeatmapChart, Sparkline } from "../chart";
import { last, usePoints, usePolled } from "../data";
import { clock, duration, exact, number, utc } from "../format";
import { change, write } from "../route";

const ROW = 34;
/** Rows to scroll before the page fetches again, and rows it keeps above and below the visible ones. */
const STEP = 20;
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

export function Metrics({ params, flushes }: { params: URLSearchParams; flushes: number }) {
  const metric = params.get("metric");
  return metric ? (
    <OneMetric metric={metric} params={params} flushes={flushes} />
  ) : (
    <Search params={params} />
  );
}

function useDebounced<T>(value: T, milliseconds: number): T {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return late;
}

function Search({ params }: { params: URLSearchParams }) {
  const [text, setText] = useState(params.get("match") ?? "");
  const sort = params.get("sort") ?? "name";
  const match = useDebounced(text, 120);
  const [first, setFirst] = useState(0);
  const offset = useDebounced(first, 60);
  const page = Math.ceil(innerHeight / ROW) + 2 * STEP;
  useEffect(() => change({ match }), [match]);
  // The agent searches and sorts. The page holds the visible rows and a few around them, however many metrics there are.
  const { data, error } = usePolled<MetricList>("metrics", { match, sort, offset, limit: page }, 5);
  const total = data?.total ?? 0;
  return (
    <>
      <div class="bar">
        <label>
          Search{" "}
          <input
            type="search"
            value={text}
            placeholder="part of a name, or a pattern with * and ?"
            onInput={(event) => {
              setText((event.target as HTMLInputElement).value);
              setFirst(0);
            }}
          />
        </label>
        <label>
          Sort by{" "}
          <select
            value={sort}
            onChange={(event) => {
              change({ sort: (event.target as HTMLSelectElement).value });
              setFirst(0);
            }}
          >
            <option value="name">name</option>
            <option value="contexts">contexts</option>
            <option value="growth">growth</option>
            <option value="seen">last seen</option>
          </select>
        </label>
        {data && (
          <span class="quiet" role="status">
            {exact(total)} metrics in the last {duration(data.held_to - data.held_from)}
          </span>
        )}
      </div>
      {error && <p class="alarm">{error}</p>}
      {data && total === 0 && <EmptyList match={match} />}
      <Rows list={data} order={`${match} ${sort}`} page={page} onFirst={setFirst} />
    </>
  );
}

function EmptyList({ match }: { match: string }) {
  if (match) return <p class="quiet">No metric matches {match}.</p>;
  return (
    <p class="quiet">
      No metric has arrived yet. Send one: <code>weir send 'page.views:1|c|#user:me'</code>
    </p>
  );
}

/** Only the visible rows are in the document, so that 100,000 names scroll like ten. */
function Rows(props: {
  list: MetricList | undefined;
  /** A change scrolls to the top. */
  order: string;
  page: number;
  onFirst: (first: number) => void;
}) {
  const { list, order, page, onFirst } = props;
  const box = useRef<HTMLElement>(null);
  useEffect(() => box.current?.scrollTo(0, 0), [order]);
  // Rendered for each new list, and not for each event of the stream.
  const rows = useMemo(
    () =>
      list?.metrics.map((metric, at) => (
        // A row that leaves at one end is reused at the other.
        <Row key={(list.offset + at) % page} metric={metric} index={list.offset + at} now={list.held_to} />
      )),
    [list, page],
  );
  const onScroll = () => {
    const top = Math.floor((box.current?.scrollTop ?? 0) / ROW);
    // In steps: not every scrolled row is a request.
    onFirst(Math.max(0, Math.floor(top / STEP) * STEP - STEP));
  };
  return (
    // It scrolls, so the keyboard must reach it.
    <section class="rows" ref={box} tabIndex={0} aria-label="metrics" onScroll={onScroll}>
      <div style={{ height: `${(list?.total ?? 0) * ROW}px`, position: "relative" }}>{rows}</div>
    </section>
  );
}

function Row({ metric, index, now }: { metric: Metric; index: number; now: number }) {
  const { name, kind } = metric;
  return (
    <a
      class="row"
      href={write("metrics", { metric: name, kind })}
      style={{ top: `${index * ROW}px`, height: `${ROW}px` }}
    >
      <span class="name">{name}</span>
      <span class="quiet kind">{kind}</span>
      <Sparkline values={metric.sparkline ?? []} />
      <span class="number">{number(last(metric.sparkline ?? []))}</span>
      <span class="number">
        {exact(metric.contexts)} contexts
        {metric.new > 0 && metric.new < metric.contexts ? `, ${exact(metric.new)} new` : ""}
      </span>
      <span class="quiet seen">
        {now - metric.last_seen > 60 ? `${duration(now - metric.last_seen)} ago` : ""}
      </span>
    </a>
  );
}

function OneMetric({
  metric,
  params,
  flushes,
}: {
  metric: string;
  params: URLSearchParams;
  flushes: number;
}) {
  const by = params.getAll("by");
  const where = params.getAll("where");
  const from = params.get("from") ?? "";
  const to = params.get("to") ?? "";
  const kind = params.get("kind") ?? undefined;
  const fn = params.get("fn") ?? undefined;
  const { data: points, error } = usePoints({ metric, kind, by, where, fn, from, to }, flushes, Boolean(to));
  const { data: tags } = usePolled<{ tags: TagKey[] }>("tags", { metric }, 10);
  return (
    <>
      <div class="bar">
        <a href={write("metrics", {})}>← metrics</a>
        <h2 class="name">{metric}</h2>
        {points && <span class="quiet">{points.kind}</span>}
      </div>
      <div class="bar">
        {points && (
          <label>
            Show{" "}
            <select
              value={points.fn}
              onChange={(event) => change({ fn: (event.target as HTMLSelectElement).value })}
            >
              {[...new Set([points.fn, ...FUNCTIONS[points.kind]])].map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          Group by{" "}
          <select
            value={by[0] ?? ""}
            onChange={(event) => change({ by: (event.target as HTMLSelectElement).value })}
          >
            <option value="">nothing</option>
            {(tags?.tags ?? []).map((key) => (
              <option key={key.key} value={key.key}>
                {key.key} ({exact(key.values_total)})
              </option>
            ))}
          </select>
        </label>
        <span class="choices">
          {WINDOWS.map(([value, title]) => (
            <button
              type="button"
              key={title}
              aria-pressed={from === value && !to}
              onClick={() => change({ from: value || undefined, to: undefined })}
            >
              {title}
            </button>
          ))}
        </span>
        {where.map((filter) => (
          <button
            type="button"
            key={filter}
            onClick={() => change({ where: where.filter((other) => other !== filter) })}
          >
            {filter} ✕
          </button>
        ))}
      </div>
      {error && <p class="alarm">{error}</p>}
      {points && <PointsChart points={points} />}
      {points && <Legend points={points} />}
      {tags && <Tags tags={tags.tags} where={where} />}
    </>
  );
}

function title(group: Points["groups"][number]): string {
  if (group.other) return "other";
  return group.tags.map(([key, value]) => `${key}:${value ?? "(none)"}`).join(" ") || "all";
}

function PointsChart({ points }: { points: Points }) {
  const lines = useMemo(
    () => points.groups.map((group) => ({ label: title(group), values: group.values })),
    [points],
  );
  if (points.heatmap) return <HeatmapChart times={points.times} heatmap={points.heatmap} height={300} />;
  return (
    <Chart
      times={points.times}
      lines={lines}
      height={300}
      unit={points.fn === "rate" ? "/s" : ""}
      onZoom={(from, to) => change({ from: String(from), to: String(to) })}
    />
  );
}

function Legend({ points }: { points: Points }) {
  const first = points.times[0] ?? 0;
  const end = (points.times[points.times.length - 1] ?? 0) + points.step;
  return (
    <p class="quiet">
      {exact(points.series)} contexts, one point per {duration(points.step)}, from{" "}
      <time title={utc(first)}>{clock(first)}</time> to <time title={utc(end)}>{clock(end)}</time>. The
      history begins at <time title={utc(points.held_from)}>{clock(points.held_from)}</time>.
      {points.folded > 0 && ` “other” combines ${exact(points.folded)} small groups.`}
    </p>
  );
}

function Tags({ tags, where }: { tags: TagKey[]; where: string[] }) {
  return (
    <section>
      <h2>Tags</h2>
      {tags.map((key) => (
        <details key={key.key} open={key.values_total <= 10}>
          <summary>
            <b>{key.key}</b> {exact(key.values_total)} values, {exact(key.contexts)} contexts
          </summary>
          <p class="choices">
            {key.values.map((value) => {
              const filter = value.value ? `${key.key}:${value.value}` : key.key;
              return (
                <button
                  type="button"
                  key={value.value}
                  aria-pressed={where.includes(filter)}
                  onClick={() => change({ where: [...new Set([...where, filter])] })}
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
