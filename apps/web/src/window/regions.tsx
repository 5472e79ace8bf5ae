import { tokens } from "../format";
import { REGIONS, type Region, type Regions, type TimelineWindow } from "../types";

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

/** The regions that hold something, with their tokens. */
export function RegionLegend({ regions }: { regions: Regions }) {
  return (
    <ul class="legend">
      {REGIONS.filter((region) => regions[region] > 0).map((region) => (
        <li key={region}>
          <Swatch region={region} />
          {REGION_NAMES[region]} <span class="number quiet">{tokens(regions[region])}</span>
        </li>
      ))}
    </ul>
  );
}
