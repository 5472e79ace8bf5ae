import { useState } from "preact/hooks";
import { call } from "../api";
import { percent, tokens } from "../format";
import { sentenceOf } from "../resource";
import type { ModelList, Preview, TimelineTurn } from "../types";
import { REGIONS } from "../types";
import { PresetSelect } from "../ui/preset-select";
import { PromptDiff } from "../window/diff";
import { REGION_NAMES, Swatch } from "../window/regions";
import { overridesOf } from "./policy-json";

interface Props {
  sessionId: string;
  models: ModelList;
  turns: TimelineTurn[];
}

interface Pair {
  asItIs: Preview;
  other: Preview;
}

/** The next turn as it would be, beside the same turn under another policy or model. Nothing is sent or stored. */
export function NextTurn({ sessionId, models, turns }: Props) {
  const [text, setText] = useState("");
  const [preset, setPreset] = useState("");
  const [model, setModel] = useState("");
  const [overrides, setOverrides] = useState("");
  const [pair, setPair] = useState<Pair | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: Event) {
    event.preventDefault();
    const policy = overridesOf(overrides);
    if (typeof policy === "string") {
      setProblem(policy);
      return;
    }
    const asked = { ...(preset && { preset }), ...policy };
    const changed = { ...(Object.keys(asked).length && { policy: asked }), ...(model && { model_alias: model }) };
    const path = `sessions/${sessionId}/context/preview`;
    setBusy(true);
    setProblem(null);
    try {
      const [asItIs, other] = await Promise.all([
        call<Preview>(path, { body: { content: text } }),
        call<Preview>(path, { body: { content: text, ...changed } }),
      ]);
      setPair({ asItIs, other });
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setBusy(false);
    }
  }

  return (
    <section class="card what-if" aria-labelledby="next-turn">
      <h2 id="next-turn">The next turn</h2>
      <p class="quiet">What a message would send, as things are and otherwise. No model is called.</p>
      <form onSubmit={(event) => void submit(event)}>
        <label>
          Message
          <textarea rows={2} required value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <div class="option-fields">
          <PresetSelect label="Policy" value={preset} onChange={setPreset} />
          <label>
            Model
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              <option value="">the session's</option>
              {models.items.map((each) => (
                <option key={each.alias} value={each.alias}>
                  {each.alias}
                </option>
              ))}
            </select>
          </label>
          <label>
            Overrides (JSON)
            <input
              class="code"
              placeholder={'{"max_context_tokens": 8192}'}
              spellcheck={false}
              value={overrides}
              onInput={(event) => setOverrides(event.currentTarget.value)}
            />
          </label>
        </div>
        <button type="submit" class="primary" disabled={busy || !text.trim()}>
          {busy ? "Reckoning…" : "Preview"}
        </button>
      </form>
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      {pair && <Previewed pair={pair} turns={turns} />}
    </section>
  );
}

function Previewed({ pair, turns }: { pair: Pair; turns: TimelineTurn[] }) {
  const { asItIs, other } = pair;
  const rows: [string, (preview: Preview) => string][] = [
    ["Model", (each) => each.context.model_alias],
    ["Input budget", (each) => tokens(each.context.input_budget)],
    ["Before compression", (each) => tokens(each.context.estimated_input_tokens_before)],
    ["Charged", (each) => tokens(each.context.estimated_input_tokens_after_prune)],
    [
      "Share of the budget",
      (each) => percent(each.context.estimated_input_tokens_after_prune, each.context.input_budget),
    ],
    ["Messages", (each) => tokens(each.messages.length)],
    ["Outcome", outcomeOf],
  ];
  const used = REGIONS.filter((region) => asItIs.context.regions[region] || other.context.regions[region]);
  return (
    <>
      <div class="scroll-x">
        <table class="compare">
          <caption class="unseen">Turn {asItIs.seq} as it would be, and otherwise</caption>
          <thead>
            <tr>
              <td />
              <th scope="col" class="number">
                As it is
              </th>
              <th scope="col" class="number">
                Otherwise
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, of]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="number">{of(asItIs)}</td>
                <td class="number">{of(other)}</td>
              </tr>
            ))}
            {used.map((region) => (
              <tr key={region}>
                <th scope="row">
                  <Swatch region={region} /> {REGION_NAMES[region]}
                </th>
                <td class="number">{tokens(asItIs.context.regions[region])}</td>
                <td class="number">{tokens(other.context.regions[region])}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {asItIs.messages.length > 0 && other.messages.length > 0 && (
        <>
          <h3>What would differ</h3>
          <PromptDiff was={asItIs} now={other} turns={turns} />
        </>
      )}
    </>
  );
}

function outcomeOf(preview: Preview): string {
  if (preview.refusal) return "refused";
  const done = [preview.summary_pending && "summary first", preview.context.prune_triggered && "pruned"].filter(
    Boolean,
  );
  return done.join(", ") || "sent as it is";
}
