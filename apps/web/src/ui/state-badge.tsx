import type { TurnState } from "../types";

const WORDS: Record<TurnState, string> = {
  running: "running",
  awaiting_tools: "waits for tools",
  completed: "idle",
  failed: "failed",
  rejected: "refused",
  cancelled: "cancelled",
};

/** How a turn ended, in the page's words. */
export function stateWord(state: TurnState): string {
  return state === "completed" ? "completed" : WORDS[state];
}

/** The state of a session's newest turn. */
export function StateBadge({ state }: { state: TurnState | null }) {
  return <span class={`badge ${state ?? "unused"}`}>{state ? WORDS[state] : "no turns yet"}</span>;
}
