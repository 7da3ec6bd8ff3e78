// The list of metrics, with a search.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Metric, Metrics as MetricList, Status } from "../api";
import { Sparkline } from "../chart";
import { last, usePolled } from "../data";
import { duration, exact, number } from "../format";
import { change, go, write } from "../route";
import { Explorer, rememberList } from "./explore";

const ROW = 34;
/** Rows to scroll before the page fetches again, and rows it keeps above and below the visible ones. */
const STEP = 20;
export function Metrics({ params, flushes }: { params: URLSearchParams; flushes: number }) {
  const metric = params.get("metric");
  return metric ? <Explorer params={params} flushes={flushes} /> : <Search params={params} />;
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
  useEffect(
    () => rememberList(write("metrics", { match, sort: params.get("sort") ?? undefined })),
    [match, params],
  );
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
              go({ sort: (event.target as HTMLSelectElement).value });
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
            {exact(total)} {total === 1 ? "metric" : "metrics"}
            {data.held_to > data.held_from && ` in the last ${duration(data.held_to - data.held_from)}`}
          </span>
        )}
      </div>
      {error && <p class="alarm">{error}</p>}
      {data && total === 0 && <EmptyList match={match} />}
      <div class="row heads" aria-hidden="true">
        <span>metric</span>
        <span class="kind">kind</span>
        <span>last 30 buckets</span>
        <span class="number">newest</span>
        <span class="number">contexts</span>
        <span class="seen">last seen</span>
      </div>
      <Rows list={data} order={`${match} ${sort}`} page={page} onFirst={setFirst} />
    </>
  );
}

function EmptyList({ match }: { match: string }) {
  const { data: status } = usePolled<Status>(match ? undefined : "status", {}, 1);
  if (match) return <p class="quiet">No metric matches {match}.</p>;
  const messages = status?.total.messages.accepted ?? 0;
  if (status && messages > 0) {
    const width = status.flush.bucket_seconds;
    const end = Math.max(0, width - (status.as_of % width));
    return (
      <p role="status">
        {exact(messages)} {messages === 1 ? "message" : "messages"} arrived. The first bucket ends in{" "}
        {duration(end)}; then the metrics are here.
      </p>
    );
  }
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
      <span class="name" title={name}>
        {name}
      </span>
      <span class="quiet kind">{kind}</span>
      <Sparkline values={metric.sparkline ?? []} />
      <span class="number">{number(last(metric.sparkline ?? []))}</span>
      <span class="number">
        {exact(metric.contexts)} {metric.contexts === 1 ? "context" : "contexts"}
        {metric.new > 0 && metric.new < metric.contexts ? `, ${exact(metric.new)} new` : ""}
      </span>
      <span class="quiet seen">
        {now - metric.last_seen > 60 ? `${duration(now - metric.last_seen)} ago` : ""}
      </span>
    </a>
  );
}
