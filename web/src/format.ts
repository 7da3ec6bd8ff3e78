// Numbers, sizes and times for people.

const PREFIXES = ["", "k", "M", "G", "T", "P"];

/**
 * Three significant digits, and for large numbers an SI prefix: 12345 is 12.3k. Small ones have none, because 7 m beside 0.04 is misread.
 */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const sign = value < 0 ? "-" : "";
  let size = Math.abs(value);
  if (size < 1e-6) return Number(value.toPrecision(3)).toExponential();
  if (size < 0.01) return `${sign}${size.toFixed(2 - Math.floor(Math.log10(size))).replace(/0+$/, "")}`;
  let prefix = 0;
  while (size >= 999.5 && prefix < PREFIXES.length - 1) {
    size /= 1000;
    prefix += 1;
  }
  return `${sign}${digits(size)}${PREFIXES[prefix]}`;
}

function digits(size: number): string {
  if (size >= 100) return size.toFixed(0);
  const text = size >= 10 ? size.toFixed(1) : size.toFixed(size >= 1 ? 2 : size >= 0.1 ? 3 : 4);
  return text.replace(/\.?0+$/, "");
}

/** All digits, in groups of three. */
export function exact(value: number): string {
  return value.toLocaleString("en-US").replaceAll(",", "\u2009");
}

/** A number of things, whose name is given for several: `1 message`, `2 messages`. */
export function count(number: number, unit: string): string {
  return `${exact(number)} ${unitOf(number, unit)}`;
}

export function unitOf(number: number, unit: string): string {
  return number === 1 ? unit.split(" and ").map(singular).join(" or ") : unit;
}

function singular(noun: string): string {
  if (noun.endsWith("series")) return noun;
  if (noun.endsWith("ies")) return `${noun.slice(0, -3)}y`;
  if (/(sses|shes|ches|iases)$/.test(noun)) return noun.slice(0, -2);
  return noun.replace(/s$/, "");
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? size.toFixed(0) : digits(size)} ${units[unit]}`;
}

export function duration(seconds: number): string {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 90) return `${digits(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} d`;
}

/** The time in the browser's zone. */
export function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

/** With milliseconds. */
export function precise(seconds: number): string {
  const part = Math.floor((seconds % 1) * 1000);
  return `${clock(Math.floor(seconds))}.${String(part).padStart(3, "0")}`;
}

/** The same in UTC, for the title that shows on hover. */
export function utc(seconds: number): string {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19)}Z`;
}

export function byteRange(offset: number, length: number): string {
  return length === 1 ? `byte ${offset}` : `bytes ${offset} to ${offset + length - 1}`;
}
