import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api";
import { useTurnChanges, useThrottled } from "../live";
import { sentenceOf, useResource } from "../resource";
import { addressOf } from "../router";
import type { ModelList, Session, WindowNow } from "../types";
import { Failure } from "../ui/failure";
import { Pieces } from "../ui/long-text";
import { useMaking } from "../ui/making";
import { isOverBudget, Refusal } from "../ui/refusal";
import { useRows } from "../ui/rows";
import { Composer, draftFor } from "./composer";
import { useTurnStream } from "./stream";
import { ToolOutputs } from "./tool-outputs";
import { TurnRow, UserText } from "./turn-row";
import { useTurns } from "./turns";
import { WindowPanel } from "./window-panel";

const USUAL_ROW_PX = 190;
const NEAR_THE_END_PX = 80;

interface Props {
  sessionId: string;
  session: Session | null;
  models: ModelList;
  /** A turn to show, by its number. */
  turn: string | null;
  onTurn: () => void;
}

/** Real turns, streamed, with the window beside them. */
export function ChatTab({ sessionId, session, models, turn, onTurn }: Props) {
  const frame = useRef<HTMLElement>(null);
  const total = session?.figures?.turns ?? 0;
  const rows = useRows(frame, total, USUAL_ROW_PX);
  const turns = useTurns(sessionId, rows.first + 1, rows.end);
  const newest = useTurns(sessionId, total, total);
  const now = useResource<WindowNow>((signal) => call(`sessions/${sessionId}/context`, { signal }), [sessionId]);
  const refresh = () => {
    turns.reload();
    newest.reload();
    now.reload();
  };
  useTurnChanges(useThrottledChange(sessionId, refresh));
  const stream = useTurnStream(sessionId, () => {
    refresh();
    onTurn();
  });
  const [broken, setBroken] = useState<string | null>(null);
  const making = useMaking();
  const [sentAfter, setSentAfter] = useState<number | null>(null);
  const composer = useRef<((text: string) => void) | null>(null);
  const atEnd = useRef(true);
  const last = newest.of(total);
  const open = last?.status === "awaiting_tools" ? last : undefined;
  const busy = stream.running !== null || last?.status === "running";
  /** What can be cancelled: a turn that was just sent has no id until it is claimed, and `last` is the one before it. */
  const runningId = stream.running ? stream.running.turn?.id : busy ? last?.id : undefined;
  // A refusal stays on the page when it is opened anew, until the next message is sent.
  const stored = last?.status === "rejected" && !stream.running && sentAfter !== total ? last.error : null;
  const problem = stream.problem ?? stored;
  const refused = problem && isOverBudget(problem) ? problem : null;

  useEffect(() => {
    const seq = Number(turn);
    atEnd.current = !seq;
    if (total) rows.scrollTo(seq ? Math.min(seq, total) - 1 : "end");
  }, [turn, total > 0]);
  useEffect(() => {
    if (atEnd.current) rows.scrollTo("end");
  }, [total, stream.running?.answer, stream.problem, open?.id]);

  function onScroll() {
    const element = frame.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_THE_END_PX;
    rows.onScroll();
  }

  async function cancel(id: string) {
    setBroken(null);
    try {
      await call(`sessions/${sessionId}/turns/${id}/cancel`, { method: "POST" });
    } catch (error) {
      setBroken(sentenceOf(error));
    }
    refresh();
  }

  const startAfresh = () =>
    making.make(async () => {
      const { model_alias, mode, agent_role, room_goal, instructions, policy } = session ?? {};
      const made = await call<Session>("sessions", {
        body: { model_alias, mode, agent_role, room_goal, instructions, policy },
      });
      draftFor(made.id, draftFor(sessionId) || (refused && last?.user_input) || "");
      return addressOf(made.id, "chat");
    });

  const numbers = Array.from({ length: Math.max(0, rows.end - rows.first) }, (_, at) => rows.first + at);
  return (
    <div class="chat">
      <section aria-label="Conversation" class="talk">
        <section ref={frame} class="talk-frame" tabIndex={0} aria-label="Turns" onScroll={onScroll}>
          <Failure why={turns.problem ?? newest.problem} onRetry={refresh} />
          {session && total === 0 && !stream.running && (
            <p class="quiet">Send a message below. The answer is streamed, and the window next to it updates.</p>
          )}
          <ol class="turns" style={{ paddingTop: `${rows.before}px`, paddingBottom: `${rows.after}px` }}>
            {numbers.map((row) => {
              const one = turns.of(row + 1) ?? (row + 1 === total ? last : undefined);
              if (one && one.id === stream.running?.turn?.id) return null;
              return (
                <li key={row} data-row={row} class={String(row + 1) === turn ? "aimed" : undefined}>
                  {one ? (
                    <TurnRow
                      turn={one}
                      before={turns.of(row)}
                      sessionId={sessionId}
                      isExplained={one.error !== null && one.error.detail === problem?.detail && row + 1 === total}
                      onPinned={now.reload}
                    />
                  ) : (
                    <p class="quiet">Turn {row + 1}…</p>
                  )}
                </li>
              );
            })}
          </ol>
          {stream.running && (
            <div aria-live="polite" aria-busy="true">
              {stream.running.userText && <UserText text={stream.running.userText} />}
              <p class="answer">
                {stream.running.answer ? <Pieces text={stream.running.answer} /> : <span class="quiet">…</span>}
              </p>
            </div>
          )}
        </section>
        {open && (
          <ToolOutputs
            key={`${open.id} ${open.tool_calls.map((each) => each.id).join()}`}
            turnId={open.id}
            calls={open.tool_calls}
            hidden={stream.running !== null}
            onSend={(outputs) => void stream.postOutputs(open, outputs)}
            onCancel={() => void cancel(open.id)}
          />
        )}
        {refused && (
          <div class="notice bad" role="alert">
            <Refusal
              problem={refused}
              recovery={{
                sessionId,
                onShorten: () => composer.current?.(last?.user_input ?? ""),
                onStartAfresh: () => void startAfresh(),
              }}
            />
          </div>
        )}
        {((stream.problem && !refused) || broken) && (
          <div class="notice bad" role="alert">
            <strong>{stream.problem?.title ?? "The request failed"}</strong>
            <p>{stream.problem?.detail ?? broken}</p>
          </div>
        )}
        <Failure why={making.error ? sentenceOf(making.error) : null} />
        <Composer
          sessionId={sessionId}
          models={models}
          edit={composer}
          alias={session?.model_alias ?? models.default}
          disabled={busy || open !== undefined}
          onSend={(body, userText) => {
            atEnd.current = true;
            setSentAfter(total);
            return stream.postMessage(body, userText);
          }}
          onCancel={runningId ? () => void cancel(runningId) : null}
        />
      </section>
      <aside aria-label="Window">
        {now.loading && !now.value && <p class="quiet">Reading the window…</p>}
        <Failure why={now.problem} onRetry={now.reload} />
        <WindowPanel sessionId={sessionId} now={now.value} context={stream.running?.context ?? null} />
      </aside>
    </div>
  );
}

function useThrottledChange(sessionId: string, refresh: () => void) {
  const soon = useThrottled(refresh, 300);
  return (change: { session_id: string } | null) => {
    if (change === null || change.session_id === sessionId) soon();
  };
}
