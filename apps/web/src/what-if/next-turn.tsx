import { useState } from "preact/hooks";
import { call } from "../api";
import { draftFor } from "../chat/composer";
import { tokens } from "../format";
import { sentenceOf } from "../resource";
import type { ModelList, PolicyList, Preview, Session } from "../types";
import type { Overrides } from "./policies";
import { PolicyForm } from "./policy-form";
import { type Pair, Previewed } from "./previewed";
import { Failure } from "../ui/failure";

interface Props {
  sessionId: string;
  models: ModelList;
  policies: PolicyList;
  session: Session | null;
}

/** The next turn as it would be, beside the same turn under another policy or model. Nothing is sent or stored. */
export function NextTurn({ sessionId, models, policies, session }: Props) {
  const [text, setText] = useState(() => draftFor(`what-if ${sessionId}`));
  const [overrides, setOverrides] = useState<Overrides>({});
  const [model, setModel] = useState("");
  const [pair, setPair] = useState<Pair | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: Event) {
    event.preventDefault();
    const changes = {
      ...(Object.keys(overrides).length && { policy: overrides }),
      ...(model && { model_alias: model }),
    };
    const path = `sessions/${sessionId}/context/preview`;
    setBusy(true);
    setProblem(null);
    try {
      const [current, other] = await Promise.all([
        call<Preview>(path, { body: { content: text } }),
        Object.keys(changes).length ? call<Preview>(path, { body: { content: text, ...changes } }) : null,
      ]);
      setPair({ current, other });
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setBusy(false);
    }
  }

  return (
    <section class="what-if" aria-labelledby="next-turn">
      <h2 id="next-turn">The next turn</h2>
      <p class="quiet">
        What a message would send, with the current settings and with others. No model is called, nothing is stored.
      </p>
      <form class="card" onSubmit={(event) => void submit(event)}>
        <label for="next-message">Message</label>
        <textarea
          id="next-message"
          rows={2}
          required
          value={text}
          onInput={(event) => setText(draftFor(`what-if ${sessionId}`, event.currentTarget.value))}
        />
        <div class="changes">
          <div>
            <label for="next-model">Model</label>
            <select id="next-model" value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              <option value="">the session's own{session && ` (${session.model_alias})`}</option>
              {models.items.map((each) => (
                <option key={each.alias} value={each.alias}>
                  {each.alias}
                </option>
              ))}
            </select>
          </div>
          <PolicyForm
            idPrefix="next"
            policies={policies}
            models={models}
            session={session}
            value={overrides}
            onChange={setOverrides}
          />
        </div>
        <Failure why={problem} />
        <div class="buttons">
          <button type="submit" class="primary" disabled={busy || !text.trim()}>
            {busy ? "Computing…" : "Preview"}
          </button>
        </div>
      </form>
      <p role="status" class="unseen">
        {pair && announced(pair)}
      </p>
      {pair && <Previewed sessionId={sessionId} pair={pair} />}
    </section>
  );
}

function announced({ current, other }: Pair): string {
  return `Current settings: ${sizeOf(current)}.${other ? ` With your changes: ${sizeOf(other)}.` : ""}`;
}

function sizeOf({ context, refusal }: Preview): string {
  const size = `${tokens(context.estimated_input_tokens_after_prune)} of ${tokens(context.input_budget)} tokens`;
  return refusal ? `refused, ${size}` : size;
}
