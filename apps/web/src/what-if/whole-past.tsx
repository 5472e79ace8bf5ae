import { useState } from "preact/hooks";
import { call } from "../api";
import { dollars, tokens } from "../format";
import { sentenceOf, useResource } from "../resource";
import type { ModelList, PolicyList, Simulation } from "../types";
import { LaneChart } from "./lane-chart";
import { overridesOf } from "./policy-json";

interface Props {
  sessionId: string;
  models: ModelList;
  own: string;
}

const MOST_POLICIES = 4;

/** Every stored turn again under other policies, without a model, beside what happened. */
export function WholePast({ sessionId, models, own }: Props) {
  const policies = useResource<PolicyList>((signal) => call("policies", { signal }), []);
  const [chosen, setChosen] = useState<string[]>(() => ["rolling", "turn_atomic"].filter((name) => name !== own));
  const [overrides, setOverrides] = useState("");
  const [model, setModel] = useState("");
  const [found, setFound] = useState<Simulation | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  function toggle(name: string) {
    setChosen((before) => (before.includes(name) ? before.filter((each) => each !== name) : [...before, name]));
  }

  async function submit(event: Event) {
    event.preventDefault();
    const mine = overridesOf(overrides);
    if (typeof mine === "string") {
      setProblem(mine);
      return;
    }
    const asked: unknown[] = [...chosen.map((preset) => ({ name: preset, preset }))];
    if (Object.keys(mine).length) asked.push({ name: "yours", ...mine });
    setBusy(true);
    setProblem(null);
    try {
      const body = { policies: asked, ...(model && { model_aliases: [model] }) };
      setFound(await call<Simulation>(`sessions/${sessionId}/simulate`, { body }));
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setBusy(false);
    }
  }

  const nothing = chosen.length === 0 && !overrides.trim();
  return (
    <section class="card what-if" aria-labelledby="whole-past">
      <h2 id="whole-past">The whole past</h2>
      <p class="quiet">Its turns replayed under other policies, beside what happened. No model is called.</p>
      <form onSubmit={(event) => void submit(event)}>
        <fieldset class="checks">
          <legend>Policies</legend>
          {(policies.value?.presets ?? []).map((preset) => (
            <label class="inline" key={preset.name} title={preset.description}>
              <input
                type="checkbox"
                checked={chosen.includes(preset.name)}
                disabled={!chosen.includes(preset.name) && chosen.length >= MOST_POLICIES}
                onChange={() => toggle(preset.name)}
              />
              {preset.name}
            </label>
          ))}
        </fieldset>
        <div class="option-fields">
          <label>
            One of your own (JSON)
            <input
              class="code"
              placeholder={'{"summary_trigger_ratio": 0.9}'}
              spellcheck={false}
              value={overrides}
              onInput={(event) => setOverrides(event.currentTarget.value)}
            />
          </label>
          <label>
            Model
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              <option value="">the one each turn asked</option>
              {models.items.map((each) => (
                <option key={each.alias} value={each.alias}>
                  {each.alias}
                </option>
              ))}
            </select>
          </label>
        </div>
        <button type="submit" class="primary" disabled={busy || nothing}>
          {busy ? "Replaying…" : "Simulate"}
        </button>
      </form>
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      {found && <Simulated found={found} />}
    </section>
  );
}

function Simulated({ found }: { found: Simulation }) {
  const lanes = [
    { ...found.happened, name: "what happened", model_alias: null },
    ...found.policies.map((lane) => ({
      ...lane,
      name: lane.model_alias ? `${lane.name}, ${lane.model_alias}` : lane.name,
    })),
  ];
  type Shown = (typeof lanes)[number];
  const rows: [string, (lane: Shown) => string][] = [
    ["Prompt tokens sent", (lane) => tokens(lane.wire_tokens)],
    ["Model calls", (lane) => tokens(lane.calls)],
    ["Summaries", (lane) => tokens(lane.summaries.length + lane.later_summaries.length)],
    ["Tokens read for them", (lane) => tokens(lane.summarizer_prompt_tokens)],
    ["Prunes", (lane) => tokens(lane.prunes.length)],
    ["Refusals", (lane) => tokens(lane.rejections.length)],
    [
      "Turns in summaries at the end",
      (lane) => (lane.lost.turns_folded == null ? "–" : tokens(lane.lost.turns_folded)),
    ],
    ["User's words verbatim, mean", (lane) => share(lane.lost.users_words_verbatim_mean)],
    ["… in the last prompt", (lane) => share(lane.lost.users_words_verbatim_at_end)],
    ["Cost", (lane) => dollars(lane.cost_usd)],
  ];
  return (
    <>
      {found.truncated && (
        <p class="notice">
          Only the first {tokens(found.turns)} of {tokens(found.stored_turns)} turns were replayed.
        </p>
      )}
      <LaneChart lanes={lanes} />
      <div class="scroll-x">
        <table class="compare">
          <caption class="unseen">The session under each policy</caption>
          <thead>
            <tr>
              <td />
              {lanes.map((lane) => (
                <th key={lane.name} scope="col" class="number">
                  {lane.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, of]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {lanes.map((lane) => (
                  <td key={lane.name} class="number">
                    {of(lane)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <details>
        <summary>What is assumed</summary>
        <ul class="small">
          {found.assumed.map((sentence) => (
            <li key={sentence}>{sentence}</li>
          ))}
        </ul>
      </details>
    </>
  );
}

function share(part: number | undefined): string {
  return part === undefined ? "–" : `${Math.round(part * 100)} %`;
}
