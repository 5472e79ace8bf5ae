// One streamed turn, from the first event to the last.
import { useRef, useState } from "preact/hooks";
import { call, events, type Page, Problem, type ProblemBody } from "../api";
import type { Context, Turn } from "../types";

export interface Streaming {
  userText: string | null;
  answer: string;
  context: Context | null;
  turn: Partial<Turn> | null;
}

export interface TurnStream {
  running: Streaming | null;
  problem: ProblemBody | null;
  /** Posts and follows until the turn ends or waits for tools. False where the message is not known to be stored as a
   * part of the conversation: sent again as it is, it becomes one turn in any case. */
  postMessage: (body: Record<string, unknown>, userText: string) => Promise<boolean>;
  postOutputs: (turn: Turn, outputs: { tool_call_id: string; content: string }[]) => Promise<void>;
}

interface Followed {
  turn: Partial<Turn> | null;
  why: ProblemBody | null;
}

const LONGEST_LOOK_MS = 5000;
const LOST: ProblemBody = {
  title: "No answer",
  status: 0,
  code: "unreachable",
  detail: "The connection was lost before the answer was complete.",
};

export function useTurnStream(sessionId: string, onEnd: () => void): TurnStream {
  const [running, setRunning] = useState<Streaming | null>(null);
  const [problem, setProblem] = useState<ProblemBody | null>(null);
  const busy = useRef(false);
  /** The message whose fate is not known, and the key it was sent with. */
  const unsure = useRef<{ message: string; key: string } | null>(null);
  const turns = `sessions/${sessionId}/turns`;

  async function follow(
    path: string,
    body: Record<string, unknown>,
    userText: string | null,
    headers: Record<string, string>,
  ): Promise<Followed> {
    let now: Streaming = { userText, answer: "", context: null, turn: null };
    let why: ProblemBody | null = null;
    setRunning(now);
    try {
      for await (const event of events(path, { body: { ...body, stream: true }, headers })) {
        const data = event.data as { turn?: Turn; context?: Context; text?: string; error?: ProblemBody };
        if (event.name === "output.delta") now = { ...now, answer: now.answer + (data.text ?? "") };
        if (data.context) now = { ...now, context: data.context };
        if (data.turn) now = { ...now, turn: data.turn };
        if (event.name === "turn.failed" && data.error) why = data.error;
        setRunning(now);
      }
    } catch (error) {
      why = error instanceof Problem ? error.body : LOST;
    }
    return { turn: now.turn, why };
  }

  /** A turn that was cancelled did not fail: it says so itself. One whose stream was lost goes on, and shows its end. */
  function end(why: ProblemBody | null, isStored: boolean) {
    const isLost = why?.status === 0 || why?.code === "idempotency_in_flight"; // browsers post again by themselves
    setProblem(why?.code === "turn_cancelled" || (isStored && isLost) ? null : why);
    busy.current = false;
    setRunning(null);
    onEnd();
  }

  async function postMessage(body: Record<string, unknown>, userText: string): Promise<boolean> {
    if (busy.current) return false;
    busy.current = true;
    setProblem(null);
    const message = JSON.stringify(body);
    const { key } = unsure.current?.message === message ? unsure.current : { key: newKey() };
    const { turn, why } = await follow(turns, body, userText, { "Idempotency-Key": key });
    const isKeyRefused = why?.status === 401; // nothing was stored, and a look would be refused too
    const stored = turn ?? (isKeyRefused ? null : await storedBy(turns, key));
    unsure.current = stored === undefined ? { message, key } : null;
    const isStored = !!stored && stored.status !== "rejected";
    end(why, isStored);
    return isStored;
  }

  async function postOutputs({ id, user_input }: Turn, outputs: { tool_call_id: string; content: string }[]) {
    if (busy.current) return;
    busy.current = true;
    setProblem(null);
    const { turn, why } = await follow(`${turns}/${id}/tool-outputs`, { outputs }, user_input, {});
    end(why, turn !== null);
  }
  return { running, problem, postMessage, postOutputs };
}

/** The newest turn if it was posted with this key, null if not, undefined where the service does not say. */
async function storedBy(path: string, key: string): Promise<Turn | null | undefined> {
  try {
    const signal = AbortSignal.timeout(LONGEST_LOOK_MS);
    const [newest] = (await call<Page<Turn>>(path, { query: { order: "desc", limit: 1 }, signal })).items;
    return newest?.idempotency_key === key ? newest : null;
  } catch {
    return undefined;
  }
}

function newKey(): string {
  return `page-${Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-")}`;
}
