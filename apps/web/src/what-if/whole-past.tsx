import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api";
import { plural } from "../format";
import { sentenceOf } from "../resource";
import type { Lane, ModelList, PolicyList, Session, Simulation } from "../types";
import type { Overrides } from "./policies";
import { PolicyForm } from "./policy-form";
import { Simulated } from "./simulated";
import { Failure } from "../ui/failure";

interface Props {
  sessionId: string;
  models: ModelList;
  policies: PolicyList;
  session: Session | null;
}

const MOST_MODELS = 4;

interface Running {
  done: number;
  lanes: number;
  began: number;
  /** How long a lane takes, by those before it; null before there was one. */
  laneMs: number | null;
}

/** Every stored turn again under other policies and models, without calling one, beside what happened. */
export function WholePast({ sessionId, models, policies, session }: Props) {
  const [presets, setPresets] = useState<string[]>([]);
  const [aliases, setAliases] = useState<string[]>([]);
  const [own, setOwn] = useState<Overrides>({});
  const [found, setFound] = useState<Simulation | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [running, setRunning] = useState<Running | null>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);

  function chosen(): Overrides[] {
    const named = presets.map((preset) => ({ name: preset, preset }));
    const all = Object.keys(own).length ? [...named, { name: "your own", ...own }] : named;
    return all.length ? all : policies.presets.map(({ name }) => ({ name, preset: name }));
  }

  /** A policy at a time, so that what is done and what is left is known, and each is shown once it is there. */
  async function submit(event: Event) {
    event.preventDefault();
    const lanes = chosen();
    const { signal } = (abort.current = new AbortController());
    const began = performance.now();
    const made: Lane[] = [];
    setProblem(null);
    try {
      for (const [done, policy] of lanes.entries()) {
        setRunning({ done, lanes: lanes.length, began, laneMs: done ? (performance.now() - began) / done : null });
        const body = { policies: [policy], ...(aliases.length && { model_aliases: aliases }) };
        const one = await call<Simulation>(`sessions/${sessionId}/simulate`, { body, signal });
        made.push(...one.policies);
        setFound({ ...one, policies: [...made] });
      }
    } catch (error) {
      if (!signal.aborted) setProblem(sentenceOf(error));
    } finally {
      setRunning(null);
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
        <p class="small quiet">If none is chosen, all of them are compared.</p>
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
        <Failure why={problem} />
        <div class="buttons">
          <button type="submit" class="primary" disabled={running !== null}>
            {running ? "Simulating…" : "Simulate"}
          </button>
          {running && (
            <>
              <button type="button" onClick={() => abort.current?.abort()}>
                Stop
              </button>
              <Progress {...running} />
            </>
          )}
        </div>
      </form>
      <p role="status" class="unseen">
        {found && !running && `${plural(found.turns, "turn")} simulated.`}
      </p>
      {found && <Simulated found={found} />}
    </section>
  );
}

/** How many policies are done, and how long the others take by those. */
function Progress({ done, lanes, began, laneMs }: Running) {
  const [now, setNow] = useState(began);
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const passed = Math.max(0, now - began);
  const left = laneMs === null ? null : Math.max(0, laneMs * lanes - passed);
  return (
    <span class="progress">
      <progress aria-label="Simulating" max={lanes} value={done} /> {done} of {plural(lanes, "policy", "policies")},{" "}
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
