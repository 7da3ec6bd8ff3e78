// The agent's list of losses, divided by the books into those of the last minutes and earlier ones.

import type { Books, Loss } from "./api";

export interface RecentLoss extends Loss {
  /** In the window of the books. */
  recent: number;
}

export interface Losses {
  recent: RecentLoss[];
  /** Since the start, and not in the window. */
  earlier: Loss[];
}

/** Values of books are per second, so each counts `step` times. What is no counter is a state of now. */
export function divide(losses: Loss[], books: Books): Losses {
  const byKey = new Map(books.series.map((series) => [key(series.name, series.tags), series.values]));
  const all = losses.map((loss) => {
    const values = byKey.get(key(loss.series, loss.labels)) ?? [];
    const sum = values.reduce<number>((sum, value) => sum + (value ?? 0) * books.step, 0);
    return { ...loss, recent: loss.is_counter ? Math.round(sum) : loss.count };
  });
  return {
    recent: all.filter((loss) => loss.recent > 0).sort((a, b) => b.recent - a.recent),
    earlier: all.filter((loss) => loss.recent === 0).sort((a, b) => b.count - a.count),
  };
}

/** Books come second by second, and a loss that lasts rises in each: in steps, so that it is not asked for in each. */
const RISEN_STEP = 2;

/** The newest second in which a counter of a loss has risen, rounded up to a step. */
export function risenAt(books: Books, signs: Set<string>): number | undefined {
  let at = -1;
  for (const series of books.series) {
    if (series.kind === "counter" && signs.has(series.name))
      at = Math.max(
        at,
        series.values.findLastIndex((value) => (value ?? 0) > 0),
      );
  }
  const second = books.times[at];
  return second === undefined ? undefined : Math.ceil(second / RISEN_STEP) * RISEN_STEP;
}

function key(name: string, labels: [string, string][]): string {
  return JSON.stringify([name, [...labels].sort()]);
}
