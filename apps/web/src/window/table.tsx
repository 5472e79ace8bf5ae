import { useState } from "preact/hooks";
import { dollars, elapsed, tokens } from "../format";
import { addressOf } from "../router";
import type { TimelineRange } from "../types";
import { REGIONS } from "../types";
import { stateWord } from "../ui/state-badge";
import { happenedIn } from "./marks";
import { REGION_NAMES } from "./regions";

interface Props {
  sessionId: string;
  ranges: TimelineRange[];
}

/** What the plot shows, as figures. It is made when it is opened: of many turns it has more cells than the page else. */
export function TimelineTable(props: Props) {
  const [open, setOpen] = useState(false);
  return (
    <details class="figures" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open && <Figures {...props} />}
    </details>
  );
}

/** Of a run of turns, the figures are those of its largest. */
function Figures({ sessionId, ranges }: Props) {
  const used = REGIONS.filter((region) => ranges.some(({ peak }) => (peak.window?.regions[region] ?? 0) > 0));
  const isPriced = ranges.some(({ peak }) => peak.cost_usd !== null);
  return (
    <section class="scroll" tabIndex={0} aria-label="Figures of every turn">
      <table>
        <caption class="unseen">Tokens of every turn by region</caption>
        <thead>
          <tr>
            <th scope="col">Turn</th>
            <th scope="col" class="number" title="Tokens that count against the input budget">
              Counted
            </th>
            <th scope="col" class="number">
              Budget
            </th>
            {used.map((region) => (
              <th key={region} scope="col" class="number">
                {REGION_NAMES[region]}
              </th>
            ))}
            <th scope="col" class="number" title="Prompt tokens as the provider counted them, all calls of the turn">
              Reported
            </th>
            {isPriced && (
              <th scope="col" class="number">
                Cost
              </th>
            )}
            <th scope="col" class="number">
              Time
            </th>
            <th scope="col">What happened</th>
          </tr>
        </thead>
        <tbody>
          {ranges.map((range) => {
            const { first_seq: first, last_seq: last, peak } = range;
            return (
              <tr key={first}>
                <th scope="row" class="number">
                  <a href={addressOf(sessionId, "window", peak.seq)}>{peak.seq}</a>
                  {first < last && (
                    <span class="quiet">
                      {" "}
                      of {first}–{last}
                    </span>
                  )}
                </th>
                <td class="number">{peak.window ? tokens(peak.window.estimated_input_tokens_after_prune) : "–"}</td>
                <td class="number">{peak.window ? tokens(peak.window.input_budget) : "–"}</td>
                {used.map((region) => (
                  <td key={region} class="number">
                    {tokens(peak.window?.regions[region] ?? 0)}
                  </td>
                ))}
                <td class="number">{peak.prompt_tokens === null ? "–" : tokens(peak.prompt_tokens)}</td>
                {isPriced && <td class="number">{dollars(peak.cost_usd)}</td>}
                <td class="number">{elapsed(peak.created_at, peak.completed_at)}</td>
                <td>{happenedIn(range).join("; ") || stateWord(peak.status)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}
