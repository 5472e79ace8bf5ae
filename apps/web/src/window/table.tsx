import { dollars, tokens } from "../format";
import { addressOf } from "../router";
import type { TimelineTurn } from "../types";
import { REGIONS } from "../types";
import { sentenceOf } from "./marks";
import { REGION_NAMES } from "./regions";

/** What the plot shows, as figures. */
export function TimelineTable({ sessionId, turns }: { sessionId: string; turns: TimelineTurn[] }) {
  const used = REGIONS.filter((region) => turns.some((turn) => (turn.window?.regions[region] ?? 0) > 0));
  return (
    <details class="figures">
      <summary>The same as a table</summary>
      <section class="scroll" tabIndex={0} aria-label="Figures of every turn">
        <table>
          <caption class="unseen">Tokens of every turn by region</caption>
          <thead>
            <tr>
              <th scope="col">Turn</th>
              <th scope="col" class="number">
                Charged
              </th>
              <th scope="col" class="number">
                Budget
              </th>
              {used.map((region) => (
                <th key={region} scope="col" class="number">
                  {REGION_NAMES[region]}
                </th>
              ))}
              <th scope="col" class="number">
                Reported
              </th>
              <th scope="col" class="number">
                Cost
              </th>
              <th scope="col">What happened</th>
            </tr>
          </thead>
          <tbody>
            {turns.map((turn) => (
              <tr key={turn.turn_id}>
                <th scope="row" class="number">
                  <a href={addressOf(sessionId, "window", turn.turn_id)}>{turn.seq}</a>
                </th>
                <td class="number">{turn.window ? tokens(turn.window.estimated_input_tokens_after_prune) : "–"}</td>
                <td class="number">{turn.window ? tokens(turn.window.input_budget) : "–"}</td>
                {used.map((region) => (
                  <td key={region} class="number">
                    {tokens(turn.window?.regions[region] ?? 0)}
                  </td>
                ))}
                <td class="number">{turn.prompt_tokens === null ? "–" : tokens(turn.prompt_tokens)}</td>
                <td class="number">{dollars(turn.cost_usd)}</td>
                <td>{turn.events.map(sentenceOf).join("; ") || turn.status.replace("_", " ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}
