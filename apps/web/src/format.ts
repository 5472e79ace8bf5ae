// Figures and instants as people read them, the same everywhere.

const whole = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export function tokens(count: number): string {
  return whole.format(count);
}

export function shortTokens(count: number): string {
  return count < 10_000 ? whole.format(count) : compact.format(count);
}

export function percent(part: number, of: number): string {
  return of > 0 ? `${whole.format(Math.round((part / of) * 100))}\u00A0%` : "–";
}

/** US dollars with as many digits as a small sum needs. */
export function dollars(sum: number | null): string {
  if (sum === null) return "–";
  if (sum === 0) return "$0";
  return sum < 0.01 ? `$${sum.toPrecision(2)}` : `$${sum.toFixed(2)}`;
}

export function ago(instant: string | null, now: number): string {
  if (instant === null) return "–";
  const seconds = Math.max(0, (now - Date.parse(instant)) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86_400)} d ago`;
}

/** How long something took. */
export function elapsed(from: string, to: string | null): string {
  if (to === null) return "–";
  const ms = Math.max(0, Date.parse(to) - Date.parse(from));
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

export function dateTime(instant: string): string {
  return new Date(instant).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export function day(instant: string): string {
  return new Date(instant).toLocaleDateString("en-GB", { dateStyle: "medium" });
}

export function shortId(id: string): string {
  return id.slice(-8);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${whole.format(count)} ${count === 1 ? one : many}`;
}

export function cut(text: string, characters: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length <= characters ? line : `${firstOf(line, characters - 1)}…`;
}

/** The first characters of a text, at most so many; none is cut in half. */
export function firstOf(text: string, characters: number): string {
  const isInside = /[\uD800-\uDBFF]/.test(text.charAt(characters - 1));
  return text.slice(0, isInside ? characters - 1 : characters);
}
