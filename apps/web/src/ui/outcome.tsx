import type { ComponentChildren } from "preact";
import { Problem } from "../api";
import { sentenceOf } from "../resource";

/** What came of something that was asked for: done, not done for a reason that is no fault, or failed. */
export interface Told {
  kind: "done" | "no" | "bad";
  text: ComponentChildren;
}

/** Answers that say why nothing was done, and not that something broke. */
const NO_FAULT = ["nothing_to_summarize", "turn_in_progress", "summary_not_active", "turn_not_last"];

export function toldOf(error: unknown): Told {
  const isNo = error instanceof Problem && NO_FAULT.includes(error.body.code);
  return { kind: isNo ? "no" : "bad", text: sentenceOf(error) };
}

export function Outcome({ told }: { told: Told | null }) {
  return (
    <>
      <div role="status">{told && told.kind !== "bad" && <p class={`notice ${told.kind}`}>{told.text}</p>}</div>
      {told?.kind === "bad" && (
        <p class="notice bad" role="alert">
          {told.text}
        </p>
      )}
    </>
  );
}
