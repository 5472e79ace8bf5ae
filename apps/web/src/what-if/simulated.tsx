import { dollars, plural, tokens } from "../format";
import type { Simulation } from "../types";
import { Wide } from "../ui/wide";
import { LaneChart, MOST_LANES } from "./lane-chart";

type Happened = Simulation["happened"];
type History = Simulation["full_history"][number];

interface Row {
  name: string;
  /** Null where it is not known. */
  of: (lane: Happened) => string | null;
  history: (history: History) => string | null;
}

const NONE = () => "0";
const UNKNOWN = "not measured";

const ROWS: Row[] = [
  { name: "Prompt tokens sent", of: (lane) => tokens(lane.wire_tokens), history: (full) => tokens(full.wire_tokens) },
  { name: "Model calls", of: (lane) => tokens(lane.calls), history: (full) => tokens(full.calls) },
  { name: "Summaries", of: (lane) => tokens(lane.summaries.length), history: NONE },
  { name: "… after the answer", of: (lane) => tokens(lane.later_summaries.length), history: NONE },
  { name: "Tokens read for them", of: readForSummaries, history: NONE },
  { name: "Prunes", of: (lane) => tokens(lane.prunes.length), history: NONE },
  {
    name: "Refusals",
    of: (lane) => tokens(lane.rejections.length),
    history: ({ first_turn_over_the_window: first }) => (first === null ? "0" : `too long from turn ${first}`),
  },
  { name: "Turns summarized", of: (lane) => maybe(lane.lost.turns_folded, tokens), history: NONE },
  {
    name: "User's words in full",
    of: (lane) => maybe(lane.lost.users_words_verbatim_mean, share),
    history: () => "100 %",
  },
  {
    name: "… in the last prompt",
    of: (lane) => maybe(lane.lost.users_words_verbatim_at_end, share),
    history: () => "100 %",
  },
  { name: "Cost", of: (lane) => maybe(lane.cost_usd, dollars), history: (full) => maybe(full.cost_usd, dollars) },
];

/** What happened, the full history, and each policy, side by side; and the tokens of every turn as lines. */
export function Simulated({ found }: { found: Simulation }) {
  const lanes: (Happened & { name: string })[] = [
    { ...found.happened, name: "what happened" },
    ...found.policies.map((lane) => ({
      ...lane,
      name: lane.model_alias ? `${lane.name}, ${lane.model_alias}` : lane.name,
    })),
  ];
  const [happened, ...policies] = lanes;
  if (found.turns === 0) {
    return (
      <p class="quiet">
        {found.truncated
          ? "The first turn has too many tool rounds for a request. The command plimsoll simulate has no limit."
          : "There is no turn to simulate yet."}
      </p>
    );
  }
  return (
    <div class="simulated">
      {found.truncated && (
        <p class="notice">
          Only the first {tokens(found.turns)} of {plural(found.stored_turns, "turn")}{" "}
          {found.turns === 1 ? "was" : "were"} simulated.
        </p>
      )}
      <ul class="verdicts">
        {policies.map((lane) => happened && <li key={lane.name}>{verdictOf(lane, happened)}</li>)}
      </ul>
      <h3>Prompt tokens of every turn</h3>
      <LaneChart lanes={lanes.slice(0, MOST_LANES)} />
      {lanes.length > MOST_LANES && <p class="small quiet">The first {MOST_LANES} are drawn; the table has all.</p>}
      <Wide label="Figures of every policy">
        <table class="compare">
          <caption class="unseen">The session under each policy</caption>
          <thead>
            <tr>
              <td class="small quiet">Figure</td>
              <th scope="col" class="number">
                {happened?.name}
              </th>
              {found.full_history.map((full) => (
                <th key={full.model_alias} scope="col" class="number">
                  {full.model_alias ? `full history, ${full.model_alias}` : "full history"}
                </th>
              ))}
              {policies.map((lane) => (
                <th key={lane.name} scope="col" class="number">
                  {lane.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {ROWS.filter(({ of }) => lanes.some((lane) => of(lane) !== null)).map(({ name, of, history }) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="number" data-label="what happened">
                  {happened && (of(happened) ?? UNKNOWN)}
                </td>
                {found.full_history.map((full) => (
                  <td
                    key={full.model_alias}
                    class="number quiet"
                    data-label={full.model_alias ? `full history, ${full.model_alias}` : "full history"}
                  >
                    {history(full) ?? UNKNOWN}
                  </td>
                ))}
                {policies.map((lane) => (
                  <td key={lane.name} class="number" data-label={lane.name}>
                    {of(lane) ?? UNKNOWN}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Wide>
      <details>
        <summary>Assumptions</summary>
        <ul class="small">
          {found.assumed.map((sentence) => (
            <li key={sentence}>{sentence}</li>
          ))}
        </ul>
      </details>
    </div>
  );
}

/** What a policy would have changed, in a sentence. */
function verdictOf(lane: Happened & { name: string }, happened: Happened): string {
  const kept = lane.lost.users_words_verbatim_mean;
  const keptThen = happened.lost.users_words_verbatim_mean;
  const refusals = lane.rejections.length - happened.rejections.length;
  const parts = [
    `${lane.name} would have sent ${differenceOf(lane.wire_tokens, happened.wire_tokens)}`,
    kept !== undefined &&
      `kept ${share(kept)} of the user's words in full${keptThen === undefined ? "" : ` (what happened: ${share(keptThen)})`}`,
    refusals !== 0 && `refused ${plural(Math.abs(refusals), "turn")} ${refusals > 0 ? "more" : "fewer"}`,
    lane.cost_usd !== null &&
      happened.cost_usd !== null &&
      `cost ${dollars(lane.cost_usd)} instead of ${dollars(happened.cost_usd)}`,
  ].filter((part) => typeof part === "string");
  const last = parts.pop() ?? "";
  return `${parts.length ? `${parts.join(", ")} and ` : ""}${last}.`;
}

/** For example `18 % more tokens`. */
export function differenceOf(count: number, than: number): string {
  const change = than > 0 ? Math.round((count / than - 1) * 100) : 0;
  if (change === 0) return "as many tokens";
  return `${Math.abs(change)} % ${change > 0 ? "more" : "fewer"} tokens`;
}

/** Of an imported session it is not known what its summaries read. */
function readForSummaries({
  summaries,
  later_summaries: later,
  summarizer_prompt_tokens: read,
}: Happened): string | null {
  return read === 0 && summaries.length + later.length > 0 ? null : tokens(read);
}

function maybe(figure: number | null | undefined, written: (figure: number) => string): string | null {
  return figure === null || figure === undefined ? null : written(figure);
}

function share(part: number): string {
  return `${Math.round(part * 100)} %`;
}
