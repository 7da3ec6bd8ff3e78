// The page's data: fetched once, kept when the agent no longer responds, and not fetched while nobody looks.

import { useEffect, useRef, useState } from "preact/hooks";
import { address, type BookSeries, type Books, get, type Params, type Points } from "./api";

export interface Loaded<T> {
  data: T | undefined;
  error: string | undefined;
}

const RETRY_SECONDS = 2;

/** Whether the page is in front: a hidden tab asks for nothing. */
function useIsSeen(): boolean {
  const [isSeen, setIsSeen] = useState(() => !document.hidden);
  useEffect(() => {
    const changed = () => setIsSeen(!document.hidden);
    changed();
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return isSeen;
}

/**
 * Fetches every `seconds`, and whenever the request changes. With `flushes`, answers change with buckets only: after each flush, at most
 * every `seconds`. Old data stays until new data arrives.
 */
export function usePolled<T>(
  path: string | undefined,
  params: Params,
  seconds: number,
  flushes?: number,
): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ data: undefined, error: undefined });
  const key = path === undefined ? undefined : address(path, params);
  const isSeen = useIsSeen();
  const withFlushes = flushes !== undefined;
  const onFlush = useRef(() => {});
  useEffect(() => {
    if (path === undefined || !isSeen) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let begun = 0;
    const loadIn = (wait: number) => {
      clearTimeout(timer);
      timer = setTimeout(load, Math.max(wait, 0) * 1000);
    };
    const load = async () => {
      begun = Date.now();
      try {
        const data = await get<T>(path, params, abort.signal);
        setState({ data, error: undefined });
        if (!withFlushes && seconds > 0 && !abort.signal.aborted) loadIn(seconds);
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((old) => ({ data: old.data, error: String((error as Error).message ?? error) }));
        // Data that is loaded once is requested until it arrives.
        loadIn(Math.max(seconds, RETRY_SECONDS));
      }
    };
    onFlush.current = () => loadIn(seconds - (Date.now() - begun) / 1000);
    load();
    return () => {
      onFlush.current = () => {};
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, seconds, isSeen, withFlushes]);
  useEffect(() => {
    if (flushes) onFlush.current();
  }, [flushes]);
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

/** The books that a view shows. */
export interface WantedBooks {
  /** Names, or patterns with `*`. */
  names: readonly string[];
  /** Also every counter of a loss. */
  losses?: boolean;
}

const EMPTY: Books = { step: 1, times: [], series: [] };

export function useLiveBooks(wanted: WantedBooks): LiveBooks {
  const [state, setState] = useState<LiveBooks>({ books: EMPTY, connected: false, flushes: 0 });
  const isSeen = useIsSeen();
  const losses = wanted.losses ? 1 : undefined;
  const names = wanted.names.join(",") || (losses ? "" : "-");
  useEffect(() => {
    if (!isSeen) return;
    // Series that nobody followed have gaps.
    setState((old) => ({ ...old, books: EMPTY }));
    const stream = new EventSource(address("live", { books: names, losses }));
    let newest: number | undefined;
    // The newest second of the books that were fetched when the stream opened.
    let fetched: Promise<number | undefined> = Promise.resolve(undefined);
    const ending = new AbortController();
    // Fetches what the stream did not have: the agent keeps an hour.
    const fetchMissed = async () => {
      if (names === "-") return undefined;
      const params = { match: names, losses, from: `-${WINDOW}`, step: 1 };
      const more = await get<Books>("books", params, ending.signal).catch(() => undefined);
      if (more) setState((old) => ({ ...old, connected: true, books: append(old.books, more, WINDOW) }));
      return more?.times.at(-1);
    };
    const addEvent = (event: Books) => {
      setState((old) => ({
        ...old,
        connected: true,
        books: append(old.books, withUnchanged(old.books, event), WINDOW),
      }));
      const time = event.times[0] as number;
      // Changes of a second without an event are in no other event. One may have ended between the fetched books and the first event.
      const isNext = (before: number | undefined) => before !== undefined && before + 1 >= time;
      const compare = (before: number | undefined) => {
        if (!isNext(before)) fetchMissed();
      };
      if (newest === undefined) fetched.then(compare);
      else compare(newest);
      newest = time;
    };
    stream.onopen = () => {
      setState((old) => ({ ...old, connected: true }));
      newest = undefined;
      fetched = fetchMissed();
    };
    stream.onerror = () => setState((old) => ({ ...old, connected: false }));
    stream.addEventListener("books", (event) => addEvent(JSON.parse((event as MessageEvent).data)));
    stream.addEventListener("flush", () => setState((old) => ({ ...old, flushes: old.flushes + 1 })));
    return () => {
      ending.abort();
      stream.close();
    };
  }, [names, losses, isSeen]);
  return state;
}

/** A value that changes at most once in so many seconds: at once if it has not for as long, and to the newest in the end. */
export function useSlowly<T>(value: T, seconds: number): T {
  const [shown, setShown] = useState(value);
  const changed = useRef(Number.NEGATIVE_INFINITY);
  useEffect(() => {
    if (value === shown) return;
    const show = () => {
      // The first value is none that has changed.
      if (shown !== undefined) changed.current = Date.now();
      setShown(value);
    };
    const timer = setTimeout(show, Math.max(changed.current + seconds * 1000 - Date.now(), 0));
    return () => clearTimeout(timer);
  }, [value, shown, seconds]);
  return shown;
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
