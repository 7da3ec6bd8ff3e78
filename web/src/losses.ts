// The agent's list of losses, divided by the books into those of the last minutes and earlier ones.

import type { Books, Loss } from "./api";

export interface RecentLoss extends Loss {
  /** In the window of the books. */
  recent: number;
}

export interface Losses {
  recent: RecentLoss[];
  /** Counted since the start, but before the window. */
  earlier: Loss[];
}

/** The counts of an answer of the agent. */
export interface Counted {
  second: number;
  counts: Map<string, number>;
}

/** Adds an answer, and leaves out those before the window. */
export function remember(answers: Counted[], losses: Loss[], second: number, window: number): Counted[] {
  const counts = new Map(losses.map((loss) => [key(loss.series, loss.labels), loss.count]));
  const kept = answers.filter((answer) => answer.second > second - window && answer.second < second);
  return [...kept, { second, counts }];
}

/**
 * Values of books are per second, so each counts `step` times. What is no counter is a state of now. The books have a loss of an output when
 * its bucket is complete; until then it is the rise since the oldest answer in the window.
 */
export function divide(losses: Loss[], books: Books, answers: Counted[] = []): Losses {
  const byKey = new Map(books.series.map((series) => [key(series.name, series.tags), series.values]));
  const oldest = answers[0]?.counts;
  const all = losses.map((loss) => {
    const of = key(loss.series, loss.labels);
    const values = byKey.get(of) ?? [];
    const sum = values.reduce<number>((sum, value) => sum + (value ?? 0) * books.step, 0);
    const rise = oldest ? loss.count - (oldest.get(of) ?? 0) : 0;
    return { ...loss, recent: loss.is_counter ? Math.max(Math.round(sum), rise) : loss.count };
  });
  return {
    recent: all.filter((loss) => loss.recent > 0).sort((a, b) => b.recent - a.recent),
    earlier: all.filter((loss) => loss.recent === 0).sort((a, b) => b.count - a.count),
  };
}

/** The newest second in which a counter of a loss has risen. `figures`: counters that are none. */
export function risenAt(books: Books, figures: readonly string[]): number | undefined {
  let at = -1;
  for (const series of books.series) {
    if (series.kind === "counter" && !figures.includes(series.name))
      at = Math.max(
        at,
        series.values.findLastIndex((value) => (value ?? 0) > 0),
      );
  }
  return books.times[at];
}

function key(name: string, labels: [string, string][]): string {
  return JSON.stringify([name, [...labels].sort()]);
}
