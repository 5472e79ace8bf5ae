import { useState } from "preact/hooks";
import { call } from "../api";
import { sentenceOf } from "../resource";
import { useKeptFocus } from "./kept-focus";

interface Props {
  sessionId: string;
  /** What the pin is called. */
  name: string;
  content: string;
  label: string;
  onPinned?: () => void;
}

/** Makes a message part of every prompt from now on. */
export function PinButton({ sessionId, name, content, label, onPinned }: Props) {
  const [done, setDone] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const answer = useKeptFocus<HTMLSpanElement>(done);

  async function pin() {
    setProblem(null);
    try {
      const body = { content, source: name.replaceAll("-", " ") };
      await call(`sessions/${sessionId}/pins/${encodeURIComponent(name)}`, { method: "PUT", body });
      setDone(true);
      onPinned?.();
    } catch (error) {
      setProblem(sentenceOf(error));
    }
  }

  return done ? (
    <span ref={answer} tabIndex={-1} class="small quiet" role="status">
      Pinned: it is in every prompt from now on.
    </span>
  ) : (
    <>
      <button type="button" class="plain small" title="Keep it in every prompt" onClick={() => void pin()}>
        {label}
      </button>
      {problem && (
        <span class="small failed-why" role="alert">
          {problem}
        </span>
      )}
    </>
  );
}
