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
  asItIs: Preview;
  /** Null where nothing is overridden. */
  other: Preview | null;
}

interface Props {
  sessionId: string;
  pair: Pair;
}

type Row = [ComponentChildren, (preview: Preview) => string];

const ROWS: Row[] = [
  ["Model", (each) => each.context.model_alias],
  ["Its window", (each) => tokens(each.context.model_context_limit)],
  ["Input budget", (each) => tokens(each.context.input_budget)],
  ["Before compression", (each) => tokens(each.context.estimated_input_tokens_before)],
  ["After a summary", (each) => tokens(each.context.estimated_input_tokens_after_summary)],
  ["After pruning", (each) => tokens(each.context.estimated_input_tokens_after_prune)],
  ["Of the budget", (each) => percent(each.context.estimated_input_tokens_after_prune, each.context.input_budget)],
  ["On the wire", (each) => (each.refusal ? "–" : tokens(each.context.estimated_wire_tokens))],
  ["Messages", (each) => (each.refusal ? "–" : tokens(each.messages.length))],
  ["Sending it costs", (each) => dollars(each.estimated_prompt_cost_usd)],
];

/** One or two previews: what fires, the regions, the figures, and what is left out by which rule. */
export function Previewed({ sessionId, pair }: Props) {
  const { asItIs, other } = pair;
  const sides = [{ name: "As it is", preview: asItIs }, ...(other ? [{ name: "Otherwise", preview: other }] : [])];
  const atLeast = Math.max(...sides.map(({ preview }) => preview.context.input_budget));
  const used = REGIONS.filter((region) => sides.some(({ preview }) => preview.context.regions[region] > 0));
  return (
    <div class="previewed">
      {asItIs.open_turn_id && <p class="notice">A turn is still open; it must end before this one can be posted.</p>}
      {other && <p>{verdictOf(asItIs, other)}</p>}
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
        <Compared label="Figures" caption={`Turn ${asItIs.seq}: figures`} sides={sides} rows={ROWS} />
        <Compared
          label="Regions"
          caption={`Turn ${asItIs.seq}: tokens by region`}
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
      {other && asItIs.messages.length > 0 && other.messages.length > 0 && (
        <details class="what-differs">
          <summary>The two prompts, message by message</summary>
          <PromptDiff was={asItIs} now={other} />
        </details>
      )}
    </div>
  );
}

function verdictOf({ context: own, refusal }: Preview, other: Preview): string {
  if (other.refusal) return refusal ? "Both are refused." : "Otherwise the turn would be refused.";
  if (refusal) return "Otherwise the turn would be sent; as it is, it is refused.";
  const recalled = (context: Preview["context"]) => plural(context.context_trim_log.recalled?.length ?? 0, "message");
  return (
    `Otherwise the turn would send ${differenceOf(other.context.estimated_wire_tokens, own.estimated_wire_tokens)} ` +
    `and recall ${recalled(other.context)} instead of ${recalled(own)}.`
  );
}

interface ComparedProps {
  label: string;
  caption: string;
  sides: { name: string; preview: Preview }[];
  rows: Row[];
}

function Compared({ label, caption, sides, rows }: ComparedProps) {
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
          {rows.map(([name, of], at) => (
            <tr key={at}>
              <th scope="row">{name}</th>
              {sides.map((side) => (
                <td key={side.name} class="number" data-label={side.name}>
                  {of(side.preview)}
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
    recalled > 0 && `${plural(recalled, "message")} are recalled.`,
  ].filter((sentence) => typeof sentence === "string");
  return <p class="fires">{fires.length ? fires.join(" ") : "No trigger: the window is sent unchanged."}</p>;
}
