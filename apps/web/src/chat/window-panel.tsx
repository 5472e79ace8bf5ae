import { percent, plural, tokens } from "../format";
import type { Context, WindowNow } from "../types";
import { WindowBar } from "../ui/window-bar";
import { RegionLegend } from "../window/regions";

/** The window as one bar: what fills it, and where the thresholds are. */
export function WindowPanel({ now, context }: { now: WindowNow | null; context: Context | null }) {
  if (!now && !context) return null;
  const regions = context?.regions ?? now?.regions;
  const budget = context?.input_budget ?? now?.input_budget ?? 0;
  const counted = context?.estimated_input_tokens_after_prune ?? now?.estimated_input_tokens ?? 0;
  return (
    <section class="card window-panel" aria-labelledby="window-now">
      <h2 id="window-now">{context ? "This turn's prompt" : "The window now"}</h2>
      <p class="in-use-now">
        <span class="value">{tokens(counted)}</span> of {tokens(budget)} tokens{" "}
        <span class="quiet">({percent(counted, budget)})</span>
      </p>
      {regions && <WindowBar regions={regions} atLeast={budget} lines={linesOf(now)} />}
      {regions && <RegionLegend regions={regions} />}
      {context && <Happened context={context} />}
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

function Happened({ context }: { context: Context }) {
  const done = [
    context.summary_triggered && "a summary was made first",
    context.prune_triggered && "items were pruned",
    (context.context_trim_log.recalled?.length ?? 0) > 0 &&
      `${plural(context.context_trim_log.recalled?.length ?? 0, "message")} recalled`,
    context.overflow_rejected && "refused",
  ].filter(Boolean);
  return <p class="small quiet">{done.length ? `For it, ${done.join(", ")}.` : "It has all earlier messages."}</p>;
}
