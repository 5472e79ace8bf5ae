import type { Region, Regions, TimelineWindow } from "../types";

export const REGION_NAMES: Record<Region, string> = {
  system: "System layers",
  goal: "Room goal",
  pins: "Pins",
  summary: "Summary",
  history: "History",
  recall: "Recalled",
  user: "User's message",
  tools: "Tools",
  framing: "Framing",
};

export const REGION_HELP: Record<Region, string> = {
  system: "Instructions of the deployment, the mode, the role and the session",
  goal: "What the session is for; never dropped",
  pins: "Content that is part of every prompt",
  summary: "Stands in place of older turns",
  history: "Recent turns, word for word",
  recall: "Older messages brought back for this turn: they have words of its message, or stand beside one that has",
  user: "The newest message; never dropped",
  tools: "Tool definitions",
  framing: "What the wire format adds around messages",
};

/** Bottom to top in the plot: what stays comes first, what changes every turn last. */
export const STACK: readonly Region[] = ["system", "goal", "pins", "summary", "history", "recall", "user", "tools"];

/**
 * What each region charges to the input budget. Framing and tools are paid for by their own reserve; what they need
 * beyond it stands under `tools`. So the parts sum to the counted tokens, which the thresholds are of.
 */
export function countedRegions(window: TimelineWindow): Partial<Regions> {
  const counted: Partial<Regions> = {};
  let rest = window.estimated_input_tokens_after_prune;
  for (const region of STACK) {
    if (region === "tools") continue;
    const part = window.regions[region] * window.calibration_ratio;
    counted[region] = part;
    rest -= part;
  }
  counted.tools = Math.max(0, Math.round(rest));
  return counted;
}

export function Swatch({ region }: { region: Region | null }) {
  return (
    <svg class={`swatch ${region ?? "unknown"}`} viewBox="0 0 10 10" aria-hidden="true">
      <rect width="10" height="10" rx="2" />
    </svg>
  );
}
