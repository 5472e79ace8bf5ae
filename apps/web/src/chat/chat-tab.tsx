import { useEffect, useRef, useState } from "preact/hooks";
import { all, call } from "../api";
import { dollars, tokens } from "../format";
import { useNews, useThrottled } from "../live";
import { sentenceOf, useResource } from "../resource";
import { addressOf } from "../router";
import type { ModelList, Turn, WindowNow } from "../types";
import { Composer } from "./composer";
import { useTurnStream } from "./stream";
import { ToolOutputs } from "./tool-outputs";
import { WindowPanel } from "./window-panel";

interface Props {
  sessionId: string;
  models: ModelList;
  alias: string;
  onTurn: () => void;
}

/** Real turns, streamed, with the window beside them. */
export function ChatTab({ sessionId, models, alias, onTurn }: Props) {
  const turns = useResource<Turn[]>(() => all<Turn>(`sessions/${sessionId}/turns`), [sessionId]);
  const now = useResource<WindowNow>((signal) => call(`sessions/${sessionId}/context`, { signal }), [sessionId]);
  const refresh = () => {
    turns.reload();
    now.reload();
  };
  const soon = useThrottled(refresh, 300);
  useNews((news) => (news === null || news.session_id === sessionId) && soon());
  const stream = useTurnStream(() => {
    refresh();
    onTurn();
  });
  const [broken, setBroken] = useState<string | null>(null);
  const listed = turns.value ?? [];
  const open = stream.running ? undefined : listed.findLast((turn) => turn.status === "awaiting_tools");
  const busy = stream.running !== null || listed.some((turn) => turn.status === "running");
  const end = useRef<HTMLDivElement>(null);

  useEffect(() => {
    end.current?.scrollIntoView({ block: "nearest" });
  }, [listed.length, stream.running?.answer, open?.id]);

  async function cancel() {
    const id = stream.running?.turn?.id ?? listed.findLast((turn) => !turn.assistant_output)?.id;
    if (!id) return;
    setBroken(null);
    try {
      await call(`sessions/${sessionId}/turns/${id}/cancel`, { method: "POST" });
    } catch (error) {
      setBroken(sentenceOf(error));
    }
    refresh();
  }

  return (
    <div class="chat">
      <section aria-label="Conversation" class="talk">
        {turns.problem && <p class="notice bad">{turns.problem}</p>}
        {listed.length === 0 && !turns.loading && !stream.running && (
          <p class="quiet">Send a message below. The answer is streamed, and the window next to it updates.</p>
        )}
        <ol class="turns">
          {listed
            .filter((turn) => turn.id !== stream.running?.turn?.id)
            .map((turn) => (
              <TurnRow key={turn.id} turn={turn} sessionId={sessionId} />
            ))}
          {stream.running && (
            <li aria-live="polite" aria-busy="true">
              {stream.running.userText && <UserText text={stream.running.userText} />}
              <p class="answered">{stream.running.answer || <span class="quiet">…</span>}</p>
            </li>
          )}
        </ol>
        {open && (
          <ToolOutputs
            key={`${open.id} ${open.tool_calls.map((each) => each.id).join()}`}
            calls={open.tool_calls}
            onSend={(outputs) =>
              void stream.post(`sessions/${sessionId}/turns/${open.id}/tool-outputs`, { outputs }, open.user_input)
            }
            onCancel={() => void cancel()}
          />
        )}
        {(stream.problem || broken) && (
          <div class="notice bad" role="alert">
            <strong>{stream.problem?.title ?? "The request failed"}</strong>
            <p>{stream.problem?.detail ?? broken}</p>
          </div>
        )}
        <div ref={end} class="end" />
        <Composer
          models={models}
          alias={alias}
          disabled={busy || open !== undefined}
          onSend={(body, userText) => void stream.post(`sessions/${sessionId}/turns`, body, userText)}
          onCancel={stream.running ? () => void cancel() : null}
        />
      </section>
      <aside aria-label="Window">
        <WindowPanel now={now.value} context={stream.running?.context ?? null} />
      </aside>
    </div>
  );
}

const LONG = 1200;

/** A message somebody pasted a file into does not push the talk away. */
function UserText({ text }: { text: string }) {
  const [whole, setWhole] = useState(text.length <= LONG);
  return (
    <div class="said">
      <p>{whole ? text : `${text.slice(0, LONG)}…`}</p>
      {!whole && (
        <button type="button" class="plain small" onClick={() => setWhole(true)}>
          Show all {tokens(text.length)} characters
        </button>
      )}
    </div>
  );
}

function TurnRow({ turn, sessionId }: { turn: Turn; sessionId: string }) {
  return (
    <li>
      <UserText text={turn.user_input} />
      {turn.assistant_output && <p class="answered">{turn.assistant_output}</p>}
      {turn.error && (
        <p class="small failed-why">
          {turn.error.title}: {turn.error.detail}
        </p>
      )}
      <p class="small quiet turn-foot">
        <a href={addressOf(sessionId, "window", turn.id)}>Turn {turn.seq}</a>
        {turn.prompt_tokens !== null && <span>{tokens(turn.prompt_tokens)} in</span>}
        {turn.completion_tokens !== null && <span>{tokens(turn.completion_tokens)} out</span>}
        {turn.cost_usd !== null && <span>{dollars(turn.cost_usd)}</span>}
        {turn.status !== "completed" && <span>{turn.status.replace("_", " ")}</span>}
      </p>
    </li>
  );
}
