// The list of metrics, with a search.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Kind, Metric, Metrics as MetricList, Status } from "../api";
import { Sparkline } from "../chart";
import { last, usePolled } from "../data";
import { count as counted, duration, exact, number } from "../format";
import { useKeys } from "../keys";
import { change, go, write } from "../route";
import { Explorer, rememberList } from "./explore";

const ROW = 34;
/** Rows to scroll before the page fetches again, and rows it keeps above and below the visible ones. */
const STEP = 20;

/** The kinds that a user can choose, and the kinds of the API that each stands for. */
const KINDS: [string, Kind[]][] = [
  ["counters", ["counter"]],
  ["gauges", ["gauge"]],
  ["timers and distributions", ["histogram", "distribution"]],
  ["sets", ["set"]],
  ["rates", ["rate"]],
];

export function Metrics({ params, flushes }: { params: URLSearchParams; flushes: number }) {
  const metric = params.get("metric");
  return metric ? (
    <Explorer params={params} flushes={flushes} />
  ) : (
    <Search params={params} flushes={flushes} />
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

function Search({ params, flushes }: { params: URLSearchParams; flushes: number }) {
  const [text, setText] = useState(params.get("match") ?? "");
  const sort = params.get("sort") ?? "name";
  const kind = params.get("kind") ?? "";
  const match = useDebounced(text, 120);
  const [first, setFirst] = useState(0);
  const offset = useDebounced(first, 60);
  const page = Math.ceil(innerHeight / ROW) + 2 * STEP;
  // Typed text goes into the address a little later; a match that Back, a link or a hand brings into the address goes into the field.
  const inAddress = params.get("match") ?? "";
  const known = useRef(inAddress);
  useEffect(() => {
    if (match === known.current) return;
    known.current = match;
    change({ match });
  }, [match]);
  useEffect(() => {
    if (inAddress === known.current) return;
    known.current = inAddress;
    setText(inAddress);
    setFirst(0);
  }, [inAddress]);
  useEffect(
    () => rememberList(write("metrics", { match, kind, sort: params.get("sort") ?? undefined })),
    [match, params],
  );
  // The agent searches and sorts. The page holds the visible rows and a few around them, however many metrics there are.
  const { data, error } = usePolled<MetricList>(
    "metrics",
    { match, kind, sort, offset, limit: page },
    5,
    flushes,
  );
  const total = data?.total ?? 0;
  const choose = (next: string) => {
    go({ kind: next });
    setFirst(0);
  };
  const kinds = data?.kinds ?? {};
  // The chosen kind is there even if nothing is of it any more; nobody has to choose a kind that nobody sends.
  const choices = KINDS.map(([title, members]) => ({
    title,
    value: members.join(","),
    count: members.reduce((sum, member) => sum + (kinds[member] ?? 0), 0),
  })).filter(({ value, count }) => count > 0 || value === kind);
  useKeys({
    k: () => choose(choices[choices.findIndex(({ value }) => value === kind) + 1]?.value ?? ""),
  });
  return (
    <>
      <div class="bar">
        <label>
          Search{" "}
          <input
            type="search"
            value={text}
            placeholder="part of a name, or http.*"
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
            <option value="samples">samples</option>
            <option value="contexts">contexts</option>
            <option value="growth">growth</option>
            <option value="seen">last seen</option>
          </select>
        </label>
        {data && (
          <span class="quiet" role="status">
            {counted(total, "metrics")}
            {data.held_to > data.held_from && ` in the last ${duration(data.held_to - data.held_from)}`}
          </span>
        )}
      </div>
      {(choices.length > 1 || kind) && (
        <fieldset class="choices" aria-label="kinds">
          <button type="button" aria-pressed={kind === ""} onClick={() => choose("")}>
            all
          </button>
          {choices.map(({ title, value, count }) => (
            <button key={value} type="button" aria-pressed={value === kind} onClick={() => choose(value)}>
              {title} <span class="quiet">{exact(count)}</span>
            </button>
          ))}
        </fieldset>
      )}
      {error && <p class="alarm">{error}</p>}
      {data && total === 0 && <EmptyList match={match} isOfKind={kind !== ""} />}
      <div class="row heads" aria-hidden="true">
        <span>metric</span>
        <span class="kind">kind</span>
        <span>last 30 buckets</span>
        <span class="number">newest</span>
        <span class="number samples">samples/s</span>
        <span class="number contexts">contexts</span>
        <span class="seen">last seen</span>
      </div>
      <Rows list={data} order={`${match} ${kind} ${sort}`} page={page} onFirst={setFirst} />
    </>
  );
}

function EmptyList({ match, isOfKind }: { match: string; isOfKind: boolean }) {
  const { data: status } = usePolled<Status>(match || isOfKind ? undefined : "status", {}, 1);
  if (isOfKind) return <p class="quiet">No metric of this kind{match ? ` matches ${match}` : ""}.</p>;
  if (match) return <p class="quiet">No metric matches {match}.</p>;
  const messages = status?.total.messages.accepted ?? 0;
  if (status && messages > 0) {
    const width = status.flush.bucket_seconds;
    const end = Math.max(0, width - (status.as_of % width));
    return (
      <p role="status">
        {counted(messages, "messages")} arrived. The first bucket ends in {duration(end)}; then the metrics
        are here.
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
      <span class="number samples">{number(metric.samples_per_second)}</span>
      <span class="number contexts">
        {counted(metric.contexts, "contexts")}
        {metric.new > 0 && metric.new < metric.contexts ? `, ${exact(metric.new)} new` : ""}
      </span>
      <span class="quiet seen">
        {now - metric.last_seen > 60 ? `${duration(now - metric.last_seen)} ago` : ""}
      </span>
    </a>
  );
}
