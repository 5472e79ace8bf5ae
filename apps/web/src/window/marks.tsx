import { plural, tokens } from "../format";
import type { EventKind, TimelineEvent, TimelineRange } from "../types";

export type MarkKind = EventKind | "failed";

/** Name, what it means, and the words for several turns. */
export const MARKS: Record<MarkKind, { letter: string; name: string; help: string }> = {
  summary: {
    letter: "S",
    name: "Summary before the call",
    help: "Older turns were summarized so that the prompt fits.",
  },
  later_summary: {
    letter: "B",
    name: "Summary between turns",
    help: "Made after an answer, in the background or by hand.",
  },
  prune: { letter: "P", name: "Pruned", help: "Single older items were left out or shortened." },
  recall: { letter: "R", name: "Recalled", help: "Older messages that match the user's were brought back." },
  overflow: { letter: "X", name: "Over the budget, refused", help: "Nothing was sent to the model." },
  emergency: { letter: "E", name: "Emergency cut", help: "The provider refused the prompt as too long." },
  failed: { letter: "!", name: "Failed", help: "The turn ended with an error." },
};
export const MARK_KINDS = Object.keys(MARKS) as MarkKind[];

export function kindsIn(ranges: readonly TimelineRange[]): MarkKind[] {
  return MARK_KINDS.filter((kind) => ranges.some((range) => range.events[kind] > 0));
}

/** What happened in a turn, in words. */
export function sentenceOf(event: TimelineEvent): string {
  const count = event.count ?? 0;
  const size = event.tokens ? ` (${tokens(Math.abs(event.tokens))} tokens)` : "";
  switch (event.kind) {
    case "summary":
      return `${plural(count, "turn")} summarized${size}${origin(event)}`;
    case "later_summary":
      return `a summary was made after it${origin(event)}`;
    case "prune":
      return `${plural(count, "item")} pruned${size}`;
    case "recall":
      return `${plural(count, "message")} recalled${event.tokens ? ` (${tokens(event.tokens)} tokens with framing)` : ""}`;
    case "emergency":
      return `${plural(count, "turn")} cut after the provider refused${size}`;
    case "overflow":
      return "refused: over the input budget";
  }
}

function origin(event: TimelineEvent): string {
  const how = event.origin === "fallback" ? ", made by rule" : "";
  return event.status === "undone" ? `${how}, since undone` : how;
}

/** What happened in a turn, or how often in a run of turns. */
export function happenedIn(range: TimelineRange): string[] {
  if (range.first_seq === range.last_seq) {
    return [...range.peak.events.map(sentenceOf), ...(range.events.failed ? ["failed"] : [])];
  }
  return MARK_KINDS.filter((kind) => range.events[kind] > 0).map(
    (kind) => `${MARKS[kind].name.toLowerCase()}: ${plural(range.events[kind], "turn")}`,
  );
}

export function MarkLegend({ ranges }: { ranges: readonly TimelineRange[] }) {
  const kinds = kindsIn(ranges);
  if (kinds.length === 0) return null;
  return (
    <ul class="legend">
      {kinds.map((kind) => (
        <li key={kind} title={MARKS[kind].help}>
          <span class={`mark ${kind}`} aria-hidden="true">
            {MARKS[kind].letter}
          </span>
          {MARKS[kind].name}
        </li>
      ))}
    </ul>
  );
}
