import { useState } from "preact/hooks";
import { call, type Page } from "../api";
import { tokens } from "../format";
import { useTurnChanges, useThrottled } from "../live";
import { useResource } from "../resource";
import type { Summary, WindowNow } from "../types";
import { Confirm } from "../ui/confirm";
import { Failure } from "../ui/failure";
import { Outcome, type Result, resultOf } from "../ui/outcome";
import { beyond, type Coverage, changeOf, coverageOf, turnsOf } from "./coverage";
import type { SummaryEdit } from "./edit-summary";
import { SummaryCard } from "./summary-card";

const AT_ONCE = 25;

interface Props {
  sessionId: string;
  onChange: () => void;
}

interface Listed {
  summaries: Summary[];
  covered: Map<string, Coverage>;
  hasOlder: boolean;
}

/** All summaries, newest first; the active one can be taken back, and a new one asked for. */
export function Summaries({ sessionId, onChange }: Props) {
  const path = `sessions/${sessionId}`;
  const [pages, setPages] = useState(1);
  const [result, setResult] = useState<Result | null>(null);
  const [busy, setBusy] = useState(false);
  const [focus, setFocus] = useState("");
  const [leaving, setLeaving] = useState<Summary | null>(null);
  const listed = useResource<Listed>((signal) => read(sessionId, pages, signal), [sessionId, pages]);
  const soon = useThrottled(listed.reload, 500);
  useTurnChanges((change) => {
    if (change === null || change.session_id === sessionId) soon();
  });

  const summaries = listed.value?.summaries ?? [];
  const covered = listed.value?.covered ?? new Map<string, Coverage>();

  /** Does it, and says what it did to the window. */
  async function change(todo: () => Promise<string>): Promise<boolean> {
    setBusy(true);
    setResult(null);
    try {
      const before = await call<WindowNow>(`${path}/context`);
      const done = await todo();
      const after = await call<WindowNow>(`${path}/context`);
      setResult({ kind: "done", text: `${done} ${changeOf(before, after)}` });
      return true;
    } catch (error) {
      setResult(resultOf(error));
      return false;
    } finally {
      setBusy(false);
      listed.reload();
      onChange();
    }
  }

  const summarize = () =>
    change(async () => {
      const body = focus.trim() ? { focus } : {};
      const made = await call<Summary>(`${path}/summaries`, { method: "POST", body });
      const coverage = (await coverageOf(sessionId, [made], new AbortController().signal)).get(made.id);
      return `Summarized: ${coverage ? turnsOf(coverage) : "older turns"}, in ${tokens(made.token_estimate)} tokens.`;
    });

  const edited = (summary: Summary, edit: SummaryEdit) =>
    change(async () => {
      await call(`${path}/summaries/${summary.id}`, { method: "PATCH", body: edit });
      return "Saved as a new version. Undo brings the one before it back.";
    });

  const undo = (summary: Summary) =>
    change(async () => {
      await call(`${path}/summaries/${summary.id}/undo`, { method: "POST" });
      return `Undone. ${comesBack(summary, covered)}`;
    });

  return (
    <section aria-labelledby="summaries">
      <div class="title-row">
        <h2 id="summaries">Summaries</h2>
        <span class="with-focus">
          <input
            type="text"
            aria-label="What the summary keeps in most detail"
            placeholder="Keep most of… (optional)"
            maxLength={500}
            value={focus}
            onInput={(event) => setFocus(event.currentTarget.value)}
          />
          <button type="button" disabled={busy} onClick={() => void summarize()}>
            {busy ? "Working…" : "Summarize now"}
          </button>
        </span>
      </div>
      <Failure why={listed.problem} onRetry={listed.reload} />
      <Outcome result={result} />
      {listed.loading && !listed.value && <p class="quiet">Reading the summaries…</p>}
      {listed.value && summaries.length === 0 && !listed.loading && <p class="quiet">There is none yet.</p>}
      <ol class="plain-list">
        {summaries.map((summary) => (
          <li key={summary.id}>
            <SummaryCard
              sessionId={sessionId}
              summary={summary}
              coverage={covered.get(summary.id)}
              predecessor={covered.get(summary.previous_summary_id ?? "")}
              onUndo={busy ? null : () => setLeaving(summary)}
              onEdited={(edit) => edited(summary, edit)}
            />
          </li>
        ))}
      </ol>
      {listed.value?.hasOlder && (
        <button type="button" onClick={() => setPages((before) => before + 1)}>
          Older summaries
        </button>
      )}
      {leaving && (
        <Confirm
          title="Undo this summary?"
          action="Undo"
          onConfirm={() => void undo(leaving)}
          onLeave={() => setLeaving(null)}
        >
          <p>{comesBack(leaving, covered)}</p>
          <p>
            The turn count for the next summary restarts, and the next turn may summarize again. Prompts that contained
            this summary do not change.
          </p>
        </Confirm>
      )}
    </section>
  );
}

function comesBack(summary: Summary, covered: Map<string, Coverage>): string {
  if (summary.origin === "person") return "The version before it is active again.";
  const own = covered.get(summary.id);
  const predecessor = covered.get(summary.previous_summary_id ?? "");
  const raw = own ? turnsOf(beyond(own, predecessor)) : "its turns";
  if (predecessor) return `The summary of ${turnsOf(predecessor)} is active again; in full in the window: ${raw}.`;
  return summary.previous_summary_id
    ? `The previous summary is active again; in full in the window: ${raw}.`
    : `No summary is active; in full in the window: ${raw}.`;
}

async function read(sessionId: string, pages: number, signal: AbortSignal): Promise<Listed> {
  const summaries: Summary[] = [];
  let cursor: string | null = null;
  for (let at = 0; at < pages; at += 1) {
    const query = { limit: AT_ONCE, cursor };
    const page: Page<Summary> = await call(`sessions/${sessionId}/summaries`, { query, signal });
    summaries.push(...page.items);
    cursor = page.next_cursor;
    if (cursor === null) break;
  }
  return { summaries, covered: await coverageOf(sessionId, summaries, signal), hasOlder: cursor !== null };
}
