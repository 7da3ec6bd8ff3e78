// The agent's responses under /api/v1. The reference is docs/api.md.

export type Kind = "counter" | "rate" | "gauge" | "set" | "distribution" | "histogram";

export interface Metric {
  name: string;
  kind: Kind;
  contexts: number;
  new: number;
  /** In the last bucket, of the busiest metrics. */
  samples_per_second?: number;
  first_seen: number;
  last_seen: number;
  tag_keys?: string[];
  sparkline?: (number | null)[];
}

export interface Metrics {
  held_from: number;
  held_to: number;
  /** Number of all metrics that match. */
  total: number;
  /** Matches of the search by kind, also of the kinds that are not chosen. */
  kinds: Partial<Record<Kind, number>>;
  /** Position of the first metric of this response among them. */
  offset: number;
  metrics: Metric[];
}

export interface Group {
  tags: [string, string | null][];
  other: boolean;
  series: number;
  values: (number | null)[];
}

export interface Heatmap {
  rows: [number, number][];
  counts: number[][];
}

export interface Points {
  metric: string;
  kind: Kind;
  fn: string;
  step: number;
  width: number;
  times: number[];
  groups: Group[];
  folded: number;
  series: number;
  held_from: number;
  heatmap?: Heatmap;
}

export interface TagKey {
  key: string;
  values_total: number;
  contexts: number;
  values: { value: string; contexts: number }[];
}

export interface BookSeries {
  name: string;
  kind: Kind;
  tags: [string, string][];
  values: (number | null)[];
}

export interface Books {
  step: number;
  times: number[];
  series: BookSeries[];
}

/** A loss, refusal or degradation. */
export interface Loss {
  series: string;
  labels: [string, string][];
  /** A listener, an output or another place; empty for the whole agent. */
  place: string;
  meaning: string;
  /** A counter counts since the start; a gauge has its present value. */
  count: number;
  unit: string;
  is_counter: boolean;
  remedy: string;
}

export interface Counts {
  produced: number;
  delivered: number;
  pending: number;
  pending_where: Record<string, number>;
  dropped: Record<string, number>;
}

export interface OutputStatus {
  name: string;
  type: string;
  healthy: boolean;
  since: number;
  last_error: { at?: number; message?: string } | string | null;
  lag_seconds: number;
  points: Counts;
  events: Counts;
  checks: Counts;
  messages: Counts;
  disk_bytes: number | null;
  /** Only of outputs that send payloads. */
  bytes?: number;
  payloads?: number;
  retries?: number;
  notes: string[];
}

export interface ListenerBooks {
  bytes: number;
  packets: { received: number; parsed: number; dropped: Record<string, number> };
  messages: { received: number; accepted: number; rejected: Record<string, number> };
  samples: { received: number; aggregated: number; overflowed: number; dropped: Record<string, number> };
}

/** A client's own telemetry. */
export interface ClientRow {
  client: string;
  version: string;
  transport: string;
  origin: string;
  last_seen: number;
  packets_sent: number;
  packets_dropped: number;
  packets_dropped_queue: number;
  packets_dropped_writer: number;
}

/** A share of the memory budget. */
export interface MemoryShare {
  name: string;
  bytes: number;
  used: number;
  /** The use of the fullest part: each output has a part of a share. */
  fullest: number;
  when_full: string;
  events: Record<string, number>;
}

export interface Status {
  version: string;
  hostname: string;
  started: number;
  as_of: number;
  not_ready: string | null;
  rates: { packets: number; bytes: number; messages: number; samples: number };
  total: ListenerBooks;
  listeners: { address: string; books: ListenerBooks; connections: number }[];
  contexts: { live: number; created: number; expired: number; overflow_series: number };
  memory: { budget: number; used: number; parts: Record<string, number>; shares: MemoryShare[] };
  flush: { bucket_seconds: number; series: number; seconds: number; longest_gap_seconds: number };
  outputs: OutputStatus[];
  clients: { seen: ClientRow[] };
  /** If they are asked for. */
  losses?: Loss[];
  /** Of a merge. */
  fleet?: Fleet;
}

type States = Record<"published" | "merged" | "late" | "quarantined" | "open" | "missing" | "lost", number>;

export interface Agent extends States {
  agent: string;
  /** Empty: unknown. */
  host: string;
  is_missing: boolean;
  shared_id: number;
}

export interface Fleet {
  sends: boolean;
  log_error: string | null;
  agents_expected: number;
  agents_seen: number;
  agents_known: number;
  lag_records: number;
  lag_seconds: number;
  closed_buckets: number;
  open_buckets: number;
  records: { merged: number; late: number; repeated: number };
  states: States;
  partitions: { partition: number; quarantined: number }[];
  agents: Agent[];
  quarantine: {
    partition: number;
    offset: number;
    agent: string | null;
    host: string;
    reason: string;
  }[];
  sent: {
    output: string;
    buckets: number;
    newest: number | null;
    lag_seconds: number;
    is_behind: boolean;
    waits: boolean;
    repeated: number;
    corrected: number;
    not_corrected: number;
  }[];
}

export interface ContextReport {
  as_of: number;
  contexts_live: number;
  growth_seconds: number;
  metrics_live: number;
  tag_keys_live: number;
  origins_live: number;
  metrics_by_samples: MetricRow[];
  metrics_by_contexts: MetricRow[];
  tag_keys: { key: string; values: number; growth: number }[];
  origins: { origin: string; contexts: number; samples_per_second: number }[];
  limited: {
    metric: string;
    reason: string;
    samples: number;
    tag_key: string;
    tag_values: number;
    origin: string;
  }[];
}

/** The effect that rules would have. */
export interface Trial {
  series_now: number;
  series_then: number;
  changed: number;
  dropped: number;
  examples: { from: string; to: string | null }[];
  incomplete: boolean;
}

export interface MetricRow {
  metric: string;
  contexts: number;
  growth: number;
  samples_per_second: number;
}

export interface Explanation {
  line: string;
  listener: string;
  others: string[];
  rejected: string | null;
  /** Of a rejected line: the invalid bytes, and what is allowed there. */
  bad?: { offset: number; length: number; before: string; bytes: string; after: string };
  meaning?: string;
  note: string | null;
  origin: { process: string | null; container: string | null; tags: string[] } | null;
  steps: {
    stage: string;
    why: string;
    renamed_to: string | null;
    added: string[];
    removed: string[];
    dropped: boolean;
  }[];
  context: { name: string; type: string; host: string; tags: string[] } | null;
  /** Of a metric: its series at each output. */
  outputs?: { output: string; series: string[] }[];
}

/** A message of the tail. */
export interface TailMessage {
  time: number;
  listener: string;
  pid?: number;
  address?: string;
  container?: string;
  line: string;
  bytes: number;
  verdict: "accepted" | "rejected" | "dropped" | "refused" | "limited";
  reason?: string;
  bad?: { offset: number; length: number; before: string; bytes: string; after: string };
}

/** The messages of the last second, and the shown ones among them. */
export interface Share {
  messages: number;
  looked_at: number;
  matched: number;
  shown: number;
  share: number;
}

/** An error response, with the agent's message. */
export class ResponseError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export type Params = Record<string, string | number | undefined | string[]>;

export function address(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) {
      for (const one of value) query.append(name, one);
    } else if (value !== undefined && value !== "") {
      query.set(name, String(value));
    }
  }
  const text = query.toString();
  return `api/v1/${path}${text ? `?${text}` : ""}`;
}

export async function get<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  const response = await fetch(address(path, params), { signal, headers: { Accept: "application/json" } });
  if (response.ok) return (await response.json()) as T;
  throw new ResponseError(response.status, await errorMessage(response));
}

/** The message of an error response. */
async function errorMessage(response: Response): Promise<string> {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    // A proxy in between may respond with something other than JSON.
    return text.trim();
  }
}

/** The reason why a stream was refused, which an EventSource does not have. `undefined` if a new request is accepted. */
export async function whyRefused(path: string, abort: AbortController): Promise<string | undefined> {
  try {
    const response = await fetch(path, { signal: abort.signal });
    if (!response.ok) return await errorMessage(response);
    // An accepted stream does not end.
    abort.abort();
    return undefined;
  } catch {
    return "the agent does not respond";
  }
}
