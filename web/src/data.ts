// The page's data: fetched once, and kept when the agent no longer responds.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import {
  address,
  type BookSeries,
  type Books,
  get,
  type Loss,
  type Meaning,
  type Params,
  type Points,
} from "./api";
import { risenAt } from "./losses";

export interface Loaded<T> {
  data: T | undefined;
  error: string | undefined;
}

const RETRY_SECONDS = 2;

/** Fetches every `seconds`, and whenever the request changes. Old data stays until new data arrives. */
export function usePolled<T>(path: string | undefined, params: Params, seconds: number): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ data: undefined, error: undefined });
  const key = path === undefined ? undefined : address(path, params);
  useEffect(() => {
    if (path === undefined) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async () => {
      let wait = seconds;
      try {
        const data = await get<T>(path, params, abort.signal);
        setState({ data, error: undefined });
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((old) => ({ data: old.data, error: String((error as Error).message ?? error) }));
        // Data that is loaded once is requested until it arrives.
        wait = Math.max(seconds, RETRY_SECONDS);
      }
      if (!abort.signal.aborted && wait > 0) timer = setTimeout(load, wait * 1000);
    };
    load();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, seconds]);
  return state;
}

/** Seconds of books that the page keeps. */
export const WINDOW = 300;

/** The agent's books of the last minutes, continued by the stream; and whether the agent responds. */
export interface LiveBooks {
  books: Books;
  connected: boolean;
  /** Number of flushes so far: a change tells views to fetch new points. */
  flushes: number;
}

const id = (series: BookSeries) => `${series.name} ${JSON.stringify(series.tags)}`;

/** Appends newer books to older ones: one column per second, with gaps where books are missing. */
export function append(old: Books, more: Books, window: number): Books {
  const newest = more.times[more.times.length - 1];
  if (newest === undefined) return old;
  // An answer can arrive after an event with a newer second.
  const last = Math.max(newest, old.times[old.times.length - 1] ?? newest);
  const first = last - window + 1;
  const times = Array.from({ length: window }, (_, at) => first + at);
  const series = new Map<string, BookSeries>();
  for (const part of [old, more]) {
    for (const one of part.series) {
      const key = id(one);
      let kept = series.get(key);
      if (!kept) {
        kept = { ...one, values: new Array(window).fill(null) };
        series.set(key, kept);
      }
      for (let at = 0; at < part.times.length; at += 1) {
        const index = (part.times[at] as number) - first;
        const value = one.values[at];
        if (index >= 0 && value !== null && value !== undefined) kept.values[index] = value;
      }
    }
  }
  return { step: 1, times, series: [...series.values()] };
}

/** An event leaves out what did not change since the second before. */
export function withUnchanged(old: Books, event: Books): Books {
  const changed = new Set(event.series.map(id));
  const unchanged = old.series.filter((series) => !changed.has(id(series)));
  const repeated = unchanged.map((series) => {
    const value = series.kind === "counter" ? 0 : last(series.values);
    return { ...series, values: event.times.map(() => value) };
  });
  return { ...event, series: [...event.series, ...repeated] };
}

/** The newest value. */
export function last(values: (number | null)[]): number | null {
  return values.findLast((value) => value !== null) ?? null;
}

export function useLiveBooks(): LiveBooks {
  const [state, setState] = useState<LiveBooks>({
    books: { step: 1, times: [], series: [] },
    connected: false,
    flushes: 0,
  });
  useEffect(() => {
    const stream = new EventSource(address("live"));
    let newest: number | undefined;
    // Fetches what the stream did not have: the agent keeps an hour.
    const fetchMissed = () => {
      const add = (more: Books) =>
        setState((old) => ({ ...old, connected: true, books: append(old.books, more, WINDOW) }));
      get<Books>("books", { from: `-${WINDOW}`, step: 1 }).then(add, () => {});
    };
    const addEvent = (event: Books) => {
      setState((old) => ({
        ...old,
        connected: true,
        books: append(old.books, withUnchanged(old.books, event), WINDOW),
      }));
      const time = event.times[0];
      // Changes of a second without an event are in no other event.
      if (newest !== undefined && time !== newest + 1) fetchMissed();
      newest = time;
    };
    stream.onopen = () => {
      setState((old) => ({ ...old, connected: true }));
      newest = undefined;
      fetchMissed();
    };
    stream.onerror = () => setState((old) => ({ ...old, connected: false }));
    stream.addEventListener("books", (event) => addEvent(JSON.parse((event as MessageEvent).data)));
    stream.addEventListener("flush", () => setState((old) => ({ ...old, flushes: old.flushes + 1 })));
    return () => stream.close();
  }, []);
  return state;
}

/** Seconds between two requests for losses while none rises: the agent works for each, and a busy one has other things to do. */
const LOSSES_SECONDS = 10;

/** The losses, asked for again as soon as the books say that one has risen. */
export function useLosses(books: Books): Loss[] | undefined {
  const { data: meanings } = usePolled<Meaning[]>("meanings", {}, 0);
  const signs = useMemo(
    () => new Set(meanings?.filter((meaning) => meaning.sign).map((meaning) => meaning.name)),
    [meanings],
  );
  return usePolled<Loss[]>("losses", { risen: risenAt(books, signs) }, LOSSES_SECONDS).data;
}

/** The position of the first second with data: a young agent has no longer past. */
export function firstSecond(books: Books): number {
  const first = books.times.findIndex((_, at) => books.series.some((series) => series.values[at] != null));
  return first < 0 ? books.times.length : first;
}

/** The sum of all series with this name and these tags, per second. */
export function column(books: Books, name: string, tags: Record<string, string> = {}): (number | null)[] {
  const matches = (series: BookSeries) =>
    series.name === name &&
    Object.entries(tags).every(([key, value]) =>
      series.tags.some((tag) => tag[0] === key && tag[1] === value),
    );
  const chosen = books.series.filter(matches);
  return books.times.map((_, at) => {
    let sum: number | null = null;
    for (const series of chosen) {
      const value = series.values[at];
      if (value !== null && value !== undefined) sum = (sum ?? 0) + value;
    }
    return sum;
  });
}

export interface Answers {
  /** One per query; of queries that failed, the last answer. */
  data: (Points | undefined)[];
  errors: string[];
}

const NO_ANSWERS: Answers = { data: [], errors: [] };

/** The points of several queries, fetched again after each flush. Old points stay until the new ones arrive. */
export function useQueries(queries: Params[], flushes: number, paused: boolean): Answers {
  const [state, setState] = useState<Answers>(NO_ANSWERS);
  const keys = queries.map((params) => address("query", params));
  const key = keys.join("\n");
  const stopped = useRef<string | undefined>(undefined);
  useEffect(() => {
    if (queries.length === 0) return setState(NO_ANSWERS);
    if (paused && stopped.current === key) return;
    stopped.current = key;
    const abort = new AbortController();
    Promise.allSettled(queries.map((params) => get<Points>("query", params, abort.signal))).then(
      (answers) => {
        if (abort.signal.aborted) return;
        const errors = answers.flatMap((answer) =>
          answer.status === "rejected" ? [String(answer.reason.message ?? answer.reason)] : [],
        );
        const data = answers.map((answer, at) =>
          answer.status === "fulfilled"
            ? answer.value
            : keepIfSame(old.current.data[at], queries[at]?.metric as string),
        );
        setState({ data, errors: [...new Set(errors)] });
      },
    );
    return () => abort.abort();
  }, [key, flushes, paused]);
  const old = useRef(state);
  old.current = state;
  return state;
}

function keepIfSame(points: Points | undefined, metric: string): Points | undefined {
  return points?.metric === metric ? points : undefined;
}
