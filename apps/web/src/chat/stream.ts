// One streamed turn, from the first event to the last.
import { useRef, useState } from "preact/hooks";
import { events, Problem, type ProblemBody } from "../api";
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
  /** Posts and follows until the turn ends or waits for tools. */
  post: (path: string, body: Record<string, unknown>, userText: string | null) => Promise<void>;
}

export function useTurnStream(onEnd: () => void): TurnStream {
  const [running, setRunning] = useState<Streaming | null>(null);
  const [problem, setProblem] = useState<ProblemBody | null>(null);
  const busy = useRef(false);

  /** A turn that was cancelled did not fail: it says so itself, and its message is part of the conversation. */
  function fail(why: ProblemBody) {
    if (why.code !== "turn_cancelled") setProblem(why);
  }

  async function post(path: string, body: Record<string, unknown>, userText: string | null) {
    if (busy.current) return;
    busy.current = true;
    setProblem(null);
    let now: Streaming = { userText, answer: "", context: null, turn: null };
    setRunning(now);
    try {
      for await (const event of events(path, { body: { ...body, stream: true } })) {
        const data = event.data as { turn?: Turn; context?: Context; text?: string; error?: ProblemBody };
        if (event.name === "output.delta") now = { ...now, answer: now.answer + (data.text ?? "") };
        if (data.context) now = { ...now, context: data.context };
        if (data.turn) now = { ...now, turn: data.turn };
        if (event.name === "turn.failed" && data.error) fail(data.error);
        setRunning(now);
      }
    } catch (error) {
      fail(
        error instanceof Problem ? error.body : { title: "Broken", status: 0, code: "broken", detail: String(error) },
      );
    } finally {
      busy.current = false;
      setRunning(null);
      onEnd();
    }
  }
  return { running, problem, post };
}
