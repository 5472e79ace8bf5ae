import { call, type Page } from "../api";
import { percent, plural, tokens } from "../format";
import { type Coverage, coverageOf, turnsOf } from "../memory/coverage";
import { useResource } from "../resource";
import type { Context, Summary, WindowNow } from "../types";
import { WindowBar } from "../ui/window-bar";
import { RegionSums } from "../window/sums";

interface Props {
  sessionId: string;
  now: WindowNow | null;
  context: Context | null;
}

/** The window as one bar: what fills it, and where the thresholds are. */
export function WindowPanel({ sessionId, now, context }: Props) {
  const summaryId = now?.active_summary_id ?? null;
  const covered = useResource<Coverage | null>(
    (signal) => (summaryId ? covering(sessionId, summaryId, signal) : Promise.resolve(null)),
    [sessionId, summaryId],
  );
  if (!now && !context) return null;
  const regions = context?.regions ?? now?.regions;
  const budget = context?.input_budget ?? now?.input_budget ?? 0;
  const reserve = context?.overhead_reserve ?? now?.overhead_reserve ?? 0;
  const counted = context?.estimated_input_tokens_after_prune ?? now?.estimated_input_tokens ?? 0;
  return (
    <section class="card window-panel" aria-labelledby="window-now">
      <h2 id="window-now">{context ? "This turn's prompt" : "The window now"}</h2>
      <p class="in-use-now">
        <span class="value">{tokens(counted)}</span> of {tokens(budget)} tokens{" "}
        <span class="quiet">({percent(counted, budget)})</span>
      </p>
      {regions && <WindowBar regions={regions} atLeast={budget} lines={linesOf(now)} />}
      {regions && <RegionSums regions={regions} counted={counted} overheadReserve={reserve} />}
      {context && <p class="small quiet">{happened(context)}</p>}
      {!context && now && <p class="small">{contents(now, covered.value)}</p>}
      {!context && now && (
        <p class="small quiet">
          {now.turns_to_next_summary === null
            ? "Summaries are triggered by size only."
            : now.turns_to_next_summary === 0
              ? "A summary is due with the next turn that allows one."
              : `${plural(now.turns_to_next_summary, "turn")} to the next summary by count.`}{" "}
          {now.summary_trigger_tokens !== null && `By size at ${tokens(now.summary_trigger_tokens)} tokens.`}
        </p>
      )}
    </section>
  );
}

function linesOf(now: WindowNow | null): number[] {
  return [now?.summary_trigger_tokens, now?.prune_trigger_tokens].filter((value) => typeof value === "number");
}

/** Newest first, the active summary is on the first page unless many were undone since. */
async function covering(sessionId: string, summaryId: string, signal: AbortSignal): Promise<Coverage | null> {
  const page = await call<Page<Summary>>(`sessions/${sessionId}/summaries`, { signal });
  const active = page.items.filter((summary) => summary.id === summaryId);
  return (await coverageOf(sessionId, active, signal)).get(summaryId) ?? null;
}

/** What of the past the window has, and in which form. */
function contents(now: WindowNow, covered: Coverage | null): string {
  const raw = plural(now.raw_turns, "turn");
  if (now.active_summary_id === null) {
    return now.raw_turns
      ? `${raw} stored in full, no summary. Refused turns are not part of it.`
      : "It is empty so far.";
  }
  const first = covered ? turnsOf(covered) : "older turns";
  return `It has ${first} only as a summary, and ${raw} in full.`;
}

/** What was done to the past for this prompt, and so in which form it is there. */
function happened(context: Context): string {
  const { actions, recalled = [] } = context.context_trim_log;
  const left = actions.filter((action) => action.kind !== "summary_folded");
  const count = left.reduce((sum, action) => sum + (action.count ?? 1), 0);
  const done = [
    context.overflow_rejected && "It was refused: nothing is sent.",
    context.summary_triggered && "A summary was made first.",
    context.regions.summary > 0
      ? "Older turns are in it only as a summary."
      : left.length === 0 && "All earlier turns are in it in full, except refused ones.",
    left.length > 0 && `${plural(count, "item")} left out or shortened.`,
    recalled.length > 0 && `${plural(recalled.length, "older message")} recalled.`,
  ];
  return done.filter(Boolean).join(" ");
}
