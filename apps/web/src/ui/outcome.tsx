import { Problem } from "../api";
import { sentenceOf } from "../resource";
import { Failure } from "./failure";

/** The result of an action: done, not done for a reason that is no fault, or failed. */
export interface Result {
  kind: "done" | "no" | "bad";
  text: string;
}

/** Answers that say why nothing was done, and not that something broke. */
const NO_FAULT = ["nothing_to_summarize", "turn_in_progress", "summary_not_active", "turn_not_last"];

export function resultOf(error: unknown): Result {
  const isNo = error instanceof Problem && NO_FAULT.includes(error.body.code);
  return { kind: isNo ? "no" : "bad", text: sentenceOf(error) };
}

export function Outcome({ result }: { result: Result | null }) {
  return (
    <>
      <div role="status">{result && result.kind !== "bad" && <p class={`notice ${result.kind}`}>{result.text}</p>}</div>
      {result?.kind === "bad" && <Failure why={result.text} />}
    </>
  );
}
