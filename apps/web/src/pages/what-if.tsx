import { useState } from "preact/hooks";
import { call } from "../api";
import { tokens } from "../format";
import { sentenceOf } from "../resource";
import type { ModelList } from "../types";

interface Preview {
  summary_pending: boolean;
  context: { input_budget: number; estimated_input_tokens_after_prune: number };
}

/** Another policy or model: for the next turn, and for the whole past. */
export function WhatIfTab({ sessionId }: { sessionId: string; models: ModelList }) {
  const [message, setMessage] = useState("");
  const [told, setTold] = useState<string | null>(null);

  async function preview(event: Event) {
    event.preventDefault();
    try {
      const { context } = await call<Preview>(`sessions/${sessionId}/context/preview`, { body: { content: message } });
      setTold(`${tokens(context.estimated_input_tokens_after_prune)} of ${tokens(context.input_budget)} tokens`);
    } catch (error) {
      setTold(sentenceOf(error));
    }
  }

  return (
    <form onSubmit={(event) => void preview(event)}>
      <h2>The next turn</h2>
      <label for="next-message">Message</label>
      <textarea id="next-message" value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      <button type="submit" class="primary" disabled={!message.trim()}>
        Preview
      </button>
      {told && <p role="status">{told}</p>}
    </form>
  );
}
