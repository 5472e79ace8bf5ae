import { useState } from "preact/hooks";
import { call, Problem } from "../api";
import { cut } from "../format";
import { useTurn } from "../overview";
import { addressOf } from "../router";
import type { ModelList, Session, TimelineTurn, Turn, TurnState } from "../types";
import { Failure } from "../ui/failure";
import { useMaking } from "../ui/making";
import { Outcome, resultOf } from "../ui/outcome";
import { isOverBudget, Refusal } from "../ui/refusal";

const OPEN: readonly TurnState[] = ["running", "awaiting_tools"];

interface Props {
  sessionId: string;
  models: ModelList;
  total: number;
  version: number;
}

/** Another past: a session that goes on from an earlier turn, or the last turn once more. This one stays as it is. */
export function Branch({ sessionId, models, total, version }: Props) {
  const newest = useTurn(sessionId, total || null, version);
  const last = newest.value;
  return (
    <section class="branch" aria-labelledby="branch">
      <h2 id="branch">Branch</h2>
      <p class="quiet small">Each creates a new session. This one does not change.</p>
      {total === 0 && <p class="quiet">There is no turn yet.</p>}
      {newest.loading && total > 0 && !last && <p class="quiet">Reading the newest turn…</p>}
      <Failure why={newest.problem} onRetry={newest.reload} />
      {last && <Fork sessionId={sessionId} last={last} />}
      {last && !OPEN.includes(last.status) && (
        <Regenerate key={last.turn_id} sessionId={sessionId} models={models} last={last} />
      )}
    </section>
  );
}

function Fork({ sessionId, last }: { sessionId: string; last: TimelineTurn }) {
  const [typed, setTyped] = useState<string | null>(null);
  const through = Number(typed ?? last.seq);
  const { busy, error, make } = useMaking();
  const turn = useTurn(sessionId, through || null, 0);

  function fork(event: Event) {
    event.preventDefault();
    const body = { through_turn_id: turn.value?.turn_id };
    if (body.through_turn_id) {
      void make(async () => addressOf((await call<Session>(`sessions/${sessionId}/fork`, { body })).id, "window"));
    }
  }

  return (
    <form class="card" onSubmit={fork}>
      <label class="inline">
        Fork through turn
        <input
          type="number"
          min="1"
          max={last.seq}
          required
          value={typed ?? last.seq}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      </label>
      <p class="small quiet of-turn">{turn.value?.seq === through ? cut(turn.value.user_input, 100) : "…"}</p>
      <div class="buttons">
        <button type="submit" disabled={busy || turn.value?.seq !== through}>
          Fork here
        </button>
      </div>
      <Outcome result={error ? resultOf(error) : null} />
    </form>
  );
}

function Regenerate({ sessionId, models, last }: { sessionId: string; models: ModelList; last: TimelineTurn }) {
  const [words, setWords] = useState("");
  const [alias, setAlias] = useState("");
  const { busy, error, make } = useMaking();
  const refused = error instanceof Problem && isOverBudget(error.body) ? error.body : null;

  function again(event: Event) {
    event.preventDefault();
    const body = { ...(words.trim() && { content: words }), ...(alias && { model_alias: alias }) };
    const path = `sessions/${sessionId}/turns/${last.turn_id}/regenerate`;
    void make(async () => {
      const made = await call<{ session: Session; turn: Turn }>(path, { body });
      return addressOf(made.session.id, "window", made.turn.seq);
    });
  }

  return (
    <form class="card" onSubmit={again}>
      <label>
        Run turn {last.seq} again with the message
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
      <Outcome result={error && !refused ? resultOf(error) : null} />
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
