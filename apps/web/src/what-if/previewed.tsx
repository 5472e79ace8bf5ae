import type { ComponentChildren } from "preact";
import { dollars, percent, plural, tokens } from "../format";
import type { Preview } from "../types";
import { REGIONS } from "../types";
import { Refusal } from "../ui/refusal";
import { Wide } from "../ui/wide";
import { WindowBar } from "../ui/window-bar";
import { PromptDiff } from "../window/diff";
import { differenceOf } from "./simulated";
import { LeftOut } from "../window/left-out";
import { REGION_NAMES, Swatch } from "../window/regions";

export interface Pair {
  current: Preview;
  /** Null where nothing is overridden. */
  other: Preview | null;
}

interface Props {
  sessionId: string;
  pair: Pair;
}

/** A figure by its name; null where it is not known. */
type Row = [ComponentChildren, (preview: Preview) => string | null];

const NOT_SENT = "not sent";
const ROWS: Row[] = [
  ["Model", (each) => each.context.model_alias],
  ["Window", (each) => tokens(each.context.model_context_limit)],
  ["Input budget", (each) => tokens(each.context.input_budget)],
  ["Before compression", (each) => tokens(each.context.estimated_input_tokens_before)],
  ["After a summary", (each) => tokens(each.context.estimated_input_tokens_after_summary)],
  ["After pruning", (each) => tokens(each.context.estimated_input_tokens_after_prune)],
  ["Of the budget", (each) => percent(each.context.estimated_input_tokens_after_prune, each.context.input_budget)],
  ["Whole request", (each) => (each.refusal ? NOT_SENT : tokens(each.context.estimated_wire_tokens))],
  ["Messages", (each) => (each.refusal ? NOT_SENT : tokens(each.messages.length))],
  ["Sending it costs", ({ estimated_prompt_cost_usd: cost }) => (cost === null ? null : dollars(cost))],
];

/** One or two previews: what fires, the regions, the figures, and what is left out by which rule. */
export function Previewed({ sessionId, pair }: Props) {
  const { current, other } = pair;
  const sides = [
    { name: "Current settings", preview: current },
    ...(other ? [{ name: "With your changes", preview: other }] : []),
  ];
  const atLeast = Math.max(...sides.map(({ preview }) => preview.context.input_budget));
  const used = REGIONS.filter((region) => sides.some(({ preview }) => preview.context.regions[region] > 0));
  return (
    <div class="previewed">
      {current.open_turn_id && <p class="notice">A turn is still open; it must end before this one can be posted.</p>}
      {other && <p>{verdictOf(current, other)}</p>}
      <div class="sides">
        {sides.map(({ name, preview }) => (
          <section key={name} class="card side" aria-label={name}>
            <h3>{name}</h3>
            <p class="in-use-now">
              <span class="value">{tokens(preview.context.estimated_input_tokens_after_prune)}</span> of{" "}
              {tokens(preview.context.input_budget)} tokens
            </p>
            <WindowBar regions={preview.context.regions} atLeast={atLeast} lines={[preview.context.input_budget]} />
            <Fires preview={preview} />
          </section>
        ))}
      </div>
      <div class="sides">
        <Compared label="Figures" caption={`Turn ${current.seq}: figures`} sides={sides} rows={ROWS} />
        <Compared
          label="Regions"
          caption={`Turn ${current.seq}: tokens by region`}
          sides={sides}
          rows={used.map((region) => [
            <>
              <Swatch region={region} /> {REGION_NAMES[region]}
            </>,
            ({ context }) => tokens(context.regions[region]),
          ])}
        />
      </div>
      <div class="sides">
        {sides.map(({ name, preview }) => (
          <div key={name} class="side">
            <p class="small quiet side-name">{name}</p>
            <LeftOut
              of={name}
              sessionId={sessionId}
              audit={preview.context}
              prompt={preview.refusal ? null : preview}
              turn={{ seq: preview.seq, window: null }}
            />
          </div>
        ))}
      </div>
      {other && current.messages.length > 0 && other.messages.length > 0 && (
        <details class="what-differs">
          <summary>The two prompts, message by message</summary>
          <PromptDiff was={current} now={other} />
        </details>
      )}
    </div>
  );
}

function verdictOf({ context: own, refusal }: Preview, other: Preview): string {
  if (other.refusal) return refusal ? "Both are refused." : "With your changes the turn would be refused.";
  if (refusal) return "With your changes the turn would be sent; with the current settings it is refused.";
  const recalled = (context: Preview["context"]) =>
    plural(context.context_trim_log.recalled?.length ?? 0, "older message");
  return (
    `With your changes the turn would send ${differenceOf(other.context.estimated_wire_tokens, own.estimated_wire_tokens)} ` +
    `and recall ${recalled(other.context)} instead of ${tokens(own.context_trim_log.recalled?.length ?? 0)}.`
  );
}

interface ComparedProps {
  label: string;
  caption: string;
  sides: { name: string; preview: Preview }[];
  rows: Row[];
}

function Compared({ label, caption, sides, rows }: ComparedProps) {
  const shown = rows.filter(([, of]) => sides.some(({ preview }) => of(preview) !== null));
  return (
    <Wide label={label}>
      <table class="compare">
        <caption class="unseen">{caption}</caption>
        <thead>
          <tr>
            <td class="small quiet">Figure</td>
            {sides.map(({ name }) => (
              <th key={name} scope="col" class="number">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map(([name, of], at) => (
            <tr key={at}>
              <th scope="row">{name}</th>
              {sides.map((side) => (
                <td key={side.name} class="number" data-label={side.name}>
                  {of(side.preview) ?? "not known"}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

function Fires({ preview }: { preview: Preview }) {
  if (preview.refusal) return <Refusal problem={preview.refusal} />;
  const { context } = preview;
  const recalled = context.context_trim_log.recalled?.length ?? 0;
  const fires = [
    preview.summary_pending && "A summary is made first; its cap is assumed here.",
    context.summary_triggered && !preview.summary_pending && "A summary is made first.",
    context.prune_triggered && "The prompt is pruned.",
    recalled > 0 && `${plural(recalled, "older message")} recalled.`,
  ].filter((sentence) => typeof sentence === "string");
  return <p class="fires">{fires.length ? fires.join(" ") : "No trigger: the window is sent unchanged."}</p>;
}
