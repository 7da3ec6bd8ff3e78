// Losses, refusals and degradations, each with its remedy: the agent's own descriptions of its own series.

import type { BookSeries, Meaning } from "./api";

export interface Loss {
  name: string;
  unit: string;
  where: string;
  meaning: string;
  advice: string;
  /** In the window looked at. */
  count: number;
}

/** The signs of loss in some seconds of books, largest first. Values are per second, so a step counts that many times. */
export function losses(series: BookSeries[], step: number, meanings: Meaning[]): Loss[] {
  const known = new Map<string, Meaning>();
  for (const meaning of meanings) known.set(key(meaning.name, meaning.label), meaning);
  const found: Loss[] = [];
  for (const one of series) {
    const meaning =
      one.tags.map((tag) => known.get(key(one.name, tag))).find(Boolean) ?? known.get(key(one.name, null));
    if (!meaning?.sign) continue;
    const count = Math.round(one.values.reduce<number>((sum, value) => sum + (value ?? 0) * step, 0));
    if (count < 1) continue;
    const tags = Object.fromEntries(one.tags);
    const where = tags.listener ?? tags.output ?? "";
    found.push({
      name: one.name,
      unit: meaning.unit,
      where,
      meaning: meaning.meaning,
      advice: meaning.advice,
      count,
    });
  }
  return found.sort((a, b) => b.count - a.count);
}

function key(name: string, label: [string, string] | null): string {
  return label ? `${name} ${label[0]}=${label[1]}` : name;
}
