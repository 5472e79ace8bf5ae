import { percent, plural, tokens } from "../format";
import type { Context, Regions, WindowNow } from "../types";
import { REGIONS } from "../types";
import { RegionLegend } from "../window/regions";

/** The window as one bar: what fills it, and where the thresholds are. */
export function WindowPanel({ now, context }: { now: WindowNow | null; context: Context | null }) {
  if (!now && !context) return null;
  const regions = context?.regions ?? now?.regions;
  const budget = context?.input_budget ?? now?.input_budget ?? 0;
  const charged = context?.estimated_input_tokens_after_prune ?? now?.estimated_input_tokens ?? 0;
  return (
    <section class="card window-panel" aria-labelledby="window-now">
      <h2 id="window-now">{context ? "This turn's prompt" : "The window now"}</h2>
      <p class="in-use-now">
        <span class="value">{tokens(charged)}</span> of {tokens(budget)} tokens{" "}
        <span class="quiet">({percent(charged, budget)})</span>
      </p>
      {regions && <WindowBar regions={regions} budget={budget} now={now} />}
      {regions && <RegionLegend regions={regions} />}
      {context && <Happened context={context} />}
      {!context && now && (
        <p class="small quiet">
          {now.turns_to_next_summary === null
            ? "Summaries come by size only."
            : now.turns_to_next_summary === 0
              ? "A summary is due with the next turn that allows one."
              : `${plural(now.turns_to_next_summary, "turn")} to the next summary by count.`}{" "}
          {now.summary_trigger_tokens !== null && `By size at ${tokens(now.summary_trigger_tokens)} tokens.`}
        </p>
      )}
    </section>
  );
}

function WindowBar({ regions, budget, now }: { regions: Regions; budget: number; now: WindowNow | null }) {
  const whole = Math.max(budget, ...[REGIONS.reduce((sum, region) => sum + regions[region], 0)], 1);
  const x = (value: number) => (value / whole) * 100;
  let left = 0;
  return (
    <svg class="window-bar" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="14" />
      {REGIONS.map((region) => {
        const from = left;
        left += regions[region];
        return <rect key={region} class={`bar ${region}`} x={x(from)} width={x(regions[region])} height="14" />;
      })}
      {[now?.summary_trigger_tokens, now?.prune_trigger_tokens].map((value) =>
        value ? <line key={value} x1={x(value)} x2={x(value)} y2="14" vector-effect="non-scaling-stroke" /> : null,
      )}
    </svg>
  );
}

function Happened({ context }: { context: Context }) {
  const done = [
    context.summary_triggered && "a summary was made first",
    context.prune_triggered && "items were pruned",
    (context.context_trim_log.recalled?.length ?? 0) > 0 &&
      `${plural(context.context_trim_log.recalled?.length ?? 0, "message")} recalled`,
    context.overflow_rejected && "refused",
  ].filter(Boolean);
  return (
    <p class="small quiet">{done.length ? `For it, ${done.join(", ")}.` : "All that was said before is in it."}</p>
  );
}
