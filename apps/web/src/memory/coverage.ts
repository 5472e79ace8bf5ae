// Which turns a summary stands for: it names its first and last message, and messages know their turns.
import { tokens } from "../format";
import { messagesById } from "../messages";
import type { Summary, WindowNow } from "../types";

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
  const ends = summaries.flatMap((each) => [each.from_message_id, each.to_message_id]);
  const messages = await messagesById(sessionId, ends, signal);
  const covered = new Map<string, Coverage>();
  for (const { id, from_message_id, to_message_id } of summaries) {
    const first = messages.get(from_message_id)?.turn_seq;
    const last = messages.get(to_message_id)?.turn_seq;
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
    `Turns in full: ${before.raw_turns} before, ${after.raw_turns} now. ` +
    `The window: ${tokens(before.estimated_input_tokens)} tokens before, ` +
    `${tokens(after.estimated_input_tokens)} now, of ${tokens(after.input_budget)}.`
  );
}
