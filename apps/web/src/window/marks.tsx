import { plural, tokens } from "../format";
import type { EventKind, TimelineEvent, TimelineTurn } from "../types";

type MarkKind = EventKind | "failed";

export const MARKS: Record<MarkKind, { letter: string; name: string }> = {
  summary: { letter: "S", name: "Summary before the call" },
  later_summary: { letter: "B", name: "Summary between turns" },
  prune: { letter: "P", name: "Pruned" },
  recall: { letter: "R", name: "Recalled" },
  overflow: { letter: "X", name: "Over the budget, refused" },
  emergency: { letter: "E", name: "Emergency cut" },
  failed: { letter: "!", name: "Failed" },
};

export function marksOf(turn: TimelineTurn): MarkKind[] {
  const kinds: MarkKind[] = [...new Set(turn.events.map((event) => event.kind))];
  return turn.status === "failed" ? [...kinds, "failed"] : kinds;
}

/** What happened, in words. */
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
      return `${plural(count, "message")} recalled${size}`;
    case "emergency":
      return `${plural(count, "turn")} cut after the provider refused${size}`;
    case "overflow":
      return "refused: over the input budget";
  }
}

function origin(event: TimelineEvent): string {
  const how = event.origin === "fallback" ? ", by the deterministic fallback" : "";
  return event.status === "undone" ? `${how}, since taken back` : how;
}

export function MarkLegend({ turns }: { turns: TimelineTurn[] }) {
  const used = new Set(turns.flatMap(marksOf));
  if (used.size === 0) return null;
  return (
    <ul class="legend">
      {(Object.keys(MARKS) as MarkKind[])
        .filter((kind) => used.has(kind))
        .map((kind) => (
          <li key={kind}>
            <span class={`mark ${kind}`} aria-hidden="true">
              {MARKS[kind].letter}
            </span>
            {MARKS[kind].name}
          </li>
        ))}
    </ul>
  );
}
