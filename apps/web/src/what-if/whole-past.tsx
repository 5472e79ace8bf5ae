import { useEffect, useState } from "preact/hooks";
import { call } from "../api";
import { plural } from "../format";
import { sentenceOf } from "../resource";
import type { ModelList, PolicyList, Session, Simulation } from "../types";
import type { Overrides } from "./policies";
import { PolicyForm } from "./policy-form";
import { Simulated } from "./simulated";

interface Props {
  sessionId: string;
  models: ModelList;
  policies: PolicyList;
  session: Session | null;
}

const MOST_MODELS = 4;
const THRESHOLDS = 4;

/** How long a turn under a policy took in the last simulation, in ms: what the next one is expected to need. */
let msOfWork: number | null = null;

/** Every stored turn again under other policies and models, without calling one, beside what happened. */
export function WholePast({ sessionId, models, policies, session }: Props) {
  const [presets, setPresets] = useState<string[]>([]);
  const [aliases, setAliases] = useState<string[]>([]);
  const [own, setOwn] = useState<Overrides>({});
  const [found, setFound] = useState<Simulation | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const [expected, setExpected] = useState<number | null>(null);

  async function submit(event: Event) {
    event.preventDefault();
    const asked: unknown[] = presets.map((preset) => ({ name: preset, preset }));
    if (Object.keys(own).length) asked.push({ name: "your own", ...own });
    const lanes = 1 + (asked.length || THRESHOLDS) * Math.max(1, aliases.length);
    const work = lanes * (session?.figures?.turns ?? 0);
    setExpected(msOfWork === null ? null : work * msOfWork);
    setBusy(true);
    setProblem(null);
    const began = performance.now();
    try {
      const body = { ...(asked.length && { policies: asked }), ...(aliases.length && { model_aliases: aliases }) };
      setFound(await call<Simulation>(`sessions/${sessionId}/simulate`, { body }));
      if (work > 0) msOfWork = (performance.now() - began) / work;
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setBusy(false);
    }
  }

  return (
    <section class="what-if" aria-labelledby="whole-past">
      <h2 id="whole-past">The whole session</h2>
      <p class="quiet">Every turn under other policies and models, compared with what happened. No model is called.</p>
      <form class="card" onSubmit={(event) => void submit(event)}>
        <fieldset class="checks">
          <legend>Policies</legend>
          {policies.presets.map((preset) => (
            <Check
              key={preset.name}
              name={preset.name}
              chosen={presets}
              onChange={setPresets}
              title={preset.description}
            />
          ))}
        </fieldset>
        <p class="small quiet">If none is chosen: a summary at 70, 80, 90 and 95 % of the budget.</p>
        {models.items.length > 1 && (
          <fieldset class="checks">
            <legend>Models</legend>
            {models.items.map((model) => (
              <Check key={model.alias} name={model.alias} chosen={aliases} onChange={setAliases} most={MOST_MODELS} />
            ))}
          </fieldset>
        )}
        <details class="own-policy">
          <summary>Your own policy{Object.keys(own).length > 0 && <strong> (included)</strong>}</summary>
          <PolicyForm
            idPrefix="past"
            policies={policies}
            models={models}
            session={session}
            value={own}
            onChange={setOwn}
          />
        </details>
        {problem && (
          <p class="notice bad" role="alert">
            {problem}
          </p>
        )}
        <div class="buttons">
          <button type="submit" class="primary" disabled={busy}>
            {busy ? "Simulating…" : "Simulate"}
          </button>
          {busy && <Progress expectedMs={expected} />}
        </div>
      </form>
      <p role="status" class="unseen">
        {found && !busy && `${plural(found.turns, "turn")} simulated.`}
      </p>
      {found && <Simulated found={found} />}
    </section>
  );
}

/** How long it has taken; and how long it still needs, once one simulation has shown how fast they are. */
function Progress({ expectedMs }: { expectedMs: number | null }) {
  const [began] = useState(() => performance.now());
  const [now, setNow] = useState(began);
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const passed = now - began;
  const left = expectedMs === null ? null : Math.max(0, expectedMs - passed);
  return (
    <span class="progress">
      {expectedMs === null ? (
        <progress aria-label="Simulating" />
      ) : (
        <progress aria-label="Simulating" max={expectedMs} value={Math.min(passed, expectedMs * 0.99)} />
      )}{" "}
      {Math.round(passed / 1000)} s{left !== null && `, about ${Math.ceil(left / 1000)} s left`}
    </span>
  );
}

interface CheckProps {
  name: string;
  chosen: string[];
  onChange: (chosen: string[]) => void;
  title?: string;
  most?: number;
}

function Check({ name, chosen, onChange, title, most = Number.POSITIVE_INFINITY }: CheckProps) {
  const isChosen = chosen.includes(name);
  return (
    <label class="inline" title={title}>
      <input
        type="checkbox"
        checked={isChosen}
        disabled={!isChosen && chosen.length >= most}
        onChange={() => onChange(isChosen ? chosen.filter((each) => each !== name) : [...chosen, name])}
      />
      {name}
    </label>
  );
}
