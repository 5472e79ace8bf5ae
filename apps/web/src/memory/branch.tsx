import { useState } from "preact/hooks";
import { call, Problem, type ProblemBody } from "../api";
import { cut } from "../format";
import { addressOf, goTo } from "../router";
import type { ModelList, Session, TimelineTurn, Turn, TurnState } from "../types";
import { Outcome, type Result, resultOf } from "../ui/outcome";
import { isOverBudget, Refusal } from "../ui/refusal";

const OPEN: readonly TurnState[] = ["pending", "running", "awaiting_tools"];

interface Props {
  sessionId: string;
  models: ModelList;
  turns: TimelineTurn[];
}

/** Another past: a session that goes on from an earlier turn, or the last turn once more. This one stays as it is. */
export function Branch({ sessionId, models, turns }: Props) {
  const ended = turns.filter((turn) => !OPEN.includes(turn.status)).toReversed();
  const last = turns.at(-1);
  return (
    <section class="branch" aria-labelledby="branch">
      <h2 id="branch">Branch</h2>
      <p class="quiet small">Each creates a new session. This one does not change.</p>
      {ended.length === 0 && <p class="quiet">No turn has ended yet.</p>}
      {ended.length > 0 && <Fork sessionId={sessionId} ended={ended} />}
      {last && !OPEN.includes(last.status) && (
        <Regenerate key={last.turn_id} sessionId={sessionId} models={models} last={last} />
      )}
    </section>
  );
}

function Fork({ sessionId, ended }: { sessionId: string; ended: TimelineTurn[] }) {
  const [through, setThrough] = useState("");
  const [result, setResult] = useState<Result | null>(null);

  async function fork(event: Event) {
    event.preventDefault();
    setResult(null);
    try {
      const body = { through_turn_id: through || (ended[0]?.turn_id ?? null) };
      const made = await call<Session>(`sessions/${sessionId}/fork`, { body });
      goTo(addressOf(made.id, "window"));
    } catch (error) {
      setResult(resultOf(error));
    }
  }

  return (
    <form class="card" onSubmit={(event) => void fork(event)}>
      <label>
        Fork through
        <select value={through} onChange={(event) => setThrough(event.currentTarget.value)}>
          {ended.map((turn, at) => (
            <option key={turn.turn_id} value={at === 0 ? "" : turn.turn_id}>
              turn {turn.seq}: {cut(turn.user_input, 60)}
            </option>
          ))}
        </select>
      </label>
      <div class="buttons">
        <button type="submit">Fork here</button>
      </div>
      <Outcome result={result} />
    </form>
  );
}

function Regenerate({ sessionId, models, last }: { sessionId: string; models: ModelList; last: TimelineTurn }) {
  const [words, setWords] = useState("");
  const [alias, setAlias] = useState("");
  const [busy, setBusy] = useState(false);
  const [result, setResult] = useState<Result | null>(null);
  const [refused, setRefused] = useState<ProblemBody | null>(null);

  async function again(event: Event) {
    event.preventDefault();
    setBusy(true);
    setResult(null);
    setRefused(null);
    try {
      const body = { ...(words.trim() && { content: words }), ...(alias && { model_alias: alias }) };
      const path = `sessions/${sessionId}/turns/${last.turn_id}/regenerate`;
      const made = await call<{ session: Session; turn: Turn }>(path, { body });
      goTo(addressOf(made.session.id, "window", made.turn.id));
    } catch (error) {
      if (error instanceof Problem && isOverBudget(error.body)) setRefused(error.body);
      else setResult(resultOf(error));
    } finally {
      setBusy(false);
    }
  }

  return (
    <form class="card" onSubmit={(event) => void again(event)}>
      <label>
        Run turn {last.seq} again, saying
        <textarea
          rows={2}
          placeholder={`the same: ${cut(last.user_input, 80)}`}
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
        />
      </label>
      <label>
        Model
        <select value={alias} onChange={(event) => setAlias(event.currentTarget.value)}>
          <option value="">the same model</option>
          {models.items.map((model) => (
            <option key={model.alias} value={model.alias}>
              {model.alias}
            </option>
          ))}
        </select>
      </label>
      <div class="buttons">
        <button type="submit" disabled={busy}>
          {busy ? "Running…" : "Run it again"}
        </button>
      </div>
      <Outcome result={result} />
      {refused && (
        <div role="status">
          <Refusal problem={refused} />
          {typeof refused.session_id === "string" && (
            <a href={addressOf(refused.session_id, "window")}>The new session</a>
          )}
        </div>
      )}
    </form>
  );
}
