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
  const [done, setDone] = useState<string | null>(null);
  const answer = useKeptFocus<HTMLSpanElement>(done);

  async function pin() {
    try {
      const body = { content, source: name.replaceAll("-", " ") };
      await call(`sessions/${sessionId}/pins/${encodeURIComponent(name)}`, { method: "PUT", body });
      setDone("Pinned: it is in every prompt from now on.");
      onPinned?.();
    } catch (error) {
      setDone(sentenceOf(error));
    }
  }

  return done ? (
    <span ref={answer} tabIndex={-1} class="small quiet" role="status">
      {done}
    </span>
  ) : (
    <button type="button" class="plain small" title="Keep it in every prompt" onClick={() => void pin()}>
      {label}
    </button>
  );
}
