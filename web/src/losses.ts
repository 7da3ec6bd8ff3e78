// Losses, refusals and degradations, with the agent's description of each and its advice.

import type { BookSeries, Meaning } from "./api";

export interface Loss {
  name: string;
  unit: string;
  where: string;
  meaning: string;
  advice: string;
  /** In the whole window. */
  count: number;
}

/** The losses in these books, largest first. Values are per second, so each counts `step` times. */
export function losses(series: BookSeries[], step: number, meanings: Meaning[]): Loss[] {
  const known = new Map<string, Meaning>();
  for (const meaning of meanings) known.set(key(meaning.name, meaning.label), meaning);
  const found: Loss[] = [];
  for (const { name, tags, values } of series) {
    const meaning = tags.map((tag) => known.get(key(name, tag))).find(Boolean) ?? known.get(key(name, null));
    if (!meaning?.sign) continue;
    const count = Math.round(values.reduce<number>((sum, value) => sum + (value ?? 0) * step, 0));
    if (count < 1) continue;
    const byKey = Object.fromEntries(tags);
    const where = byKey.listener ?? byKey.output ?? "";
    found.push({
      name,
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
