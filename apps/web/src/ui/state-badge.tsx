import type { TurnState } from "../types";

const WORDS: Record<TurnState, string> = {
  running: "running",
  awaiting_tools: "waits for tools",
  completed: "idle",
  failed: "failed",
  rejected: "refused",
  cancelled: "cancelled",
};

export function StateBadge({ state }: { state: TurnState | null }) {
  return <span class={`badge ${state ?? "empty"}`}>{state ? WORDS[state] : "empty"}</span>;
}
