import { dollars, elapsed, tokens } from "../format";
import { addressOf } from "../router";
import type { TimelineRange } from "../types";
import { REGIONS } from "../types";
import { happenedIn } from "./marks";
import { REGION_NAMES } from "./regions";

/** What the plot shows, as figures. Of a run of turns they are those of its largest. */
export function TimelineTable({ sessionId, ranges }: { sessionId: string; ranges: TimelineRange[] }) {
  const used = REGIONS.filter((region) => ranges.some(({ peak }) => (peak.window?.regions[region] ?? 0) > 0));
  const isPriced = ranges.some(({ peak }) => peak.cost_usd !== null);
  return (
    <details class="figures">
      <summary>The same as a table</summary>
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
                  <td>{happenedIn(range).join("; ") || peak.status.replace("_", " ")}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </section>
    </details>
  );
}
