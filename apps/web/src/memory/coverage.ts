// Which turns a summary stands for: it names its first and last message, and messages know their turns.
import { call, type Page } from "../api";
import { tokens } from "../format";
import type { StoredMessage, Summary, WindowNow } from "../types";

const MOST_IDS = 100;

export interface Coverage {
  first: number;
  last: number;
}

/** By the summary's id. */
export async function coverageOf(
  sessionId: string,
  summaries: readonly Summary[],
  signal: AbortSignal,
): Promise<Map<string, Coverage>> {
  const ends = [...new Set(summaries.flatMap((each) => [each.from_message_id, each.to_message_id]))];
  const turnOf = new Map<string, number>();
  for (let at = 0; at < ends.length; at += MOST_IDS) {
    const query = { ids: ends.slice(at, at + MOST_IDS).join(",") };
    const page = await call<Page<StoredMessage>>(`sessions/${sessionId}/messages`, { query, signal });
    for (const message of page.items) turnOf.set(message.id, message.turn_seq);
  }
  const covered = new Map<string, Coverage>();
  for (const { id, from_message_id, to_message_id } of summaries) {
    const first = turnOf.get(from_message_id);
    const last = turnOf.get(to_message_id);
    if (first !== undefined && last !== undefined) covered.set(id, { first, last });
  }
  return covered;
}

export function turnsOf({ first, last }: Coverage): string {
  return first === last ? `turn ${first}` : `turns ${first}–${last}`;
}

/** What of a summary is in no other one, once it is undone and its predecessor is active again. */
export function beyond(coverage: Coverage, predecessor: Coverage | undefined): Coverage {
  return predecessor ? { first: Math.min(predecessor.last + 1, coverage.last), last: coverage.last } : coverage;
}

/** How the window changed, in a sentence. */
export function changeOf(before: WindowNow, after: WindowNow): string {
  return (
    `Verbatim turns: ${before.raw_turns} before, ${after.raw_turns} now. ` +
    `The window: ${tokens(before.estimated_input_tokens)} tokens before, ` +
    `${tokens(after.estimated_input_tokens)} now, of ${tokens(after.input_budget)}.`
  );
}
