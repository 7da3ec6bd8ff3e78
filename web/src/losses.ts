// Every way to lose something, with what to do about it. The names are those of the agent's own series.

import type { BookSeries } from "./api";

export interface Loss {
  /** What was lost: packets, messages, samples, points. */
  what: string;
  reason: string;
  where: string;
  /** In the window looked at. */
  count: number;
  remedy: string;
}

const LOST: Record<string, string> = {
  weir_datagrams_dropped_total: "packets",
  weir_messages_rejected_total: "messages",
  weir_samples_dropped_total: "samples",
  weir_samples_overflowed_total: "samples folded into weir_overflow",
  weir_output_dropped_total: "points",
};

const REMEDIES: Record<string, string> = {
  kernel_buffer:
    "The kernel's receive buffer was full. Raise it: sysctl -w net.core.rmem_max=8388608, and restart weir; or send over a Unix socket, which never drops silently.",
  kernel:
    "The kernel's receive buffer was full. Raise it: sysctl -w net.core.rmem_max=8388608, and restart weir.",
  truncated: "The packet is larger than packet_bytes_max. Send smaller packets, or raise it.",
  rate_limit: "The sender is over its rate limit. See weir status for who it is.",
  memory: "The memory budget is full of contexts. See Cardinality for who made them, or raise memory.",
  queue_full: "The output's backend takes less than there is. Give it a disk queue, or raise memory.",
  rejected: "The backend refused the payload. The output's last error says why.",
  expired: "The payload waited longer than the output keeps it.",
};

export function remedy(reason: string, what: string): string {
  const known = REMEDIES[reason];
  if (known) return known;
  if (what === "messages")
    return "The sender writes messages that are no DogStatsD. Tail shows them with the place marked.";
  return "docs/metrics.md says what this counts and what to do.";
}

/** The losses in some seconds of books, largest first. Rates are per second, so a step's count is rate times step. */
export function losses(series: BookSeries[], step: number): Loss[] {
  const found: Loss[] = [];
  for (const one of series) {
    const what = LOST[one.name];
    if (!what) continue;
    const count = one.values.reduce<number>((sum, value) => sum + (value ?? 0) * step, 0);
    if (count < 0.5) continue;
    const tags = Object.fromEntries(one.tags);
    const reason = tags.reason ?? "overflow";
    const where = tags.listener ?? tags.output ?? "all";
    found.push({ what, reason, where, count: Math.round(count), remedy: remedy(reason, what) });
  }
  return found.sort((a, b) => b.count - a.count);
}
