import { useState } from "preact/hooks";
import { all, call, type Page } from "../api";
import { cut, dateTime, plural, tokens } from "../format";
import { useNews, useThrottled } from "../live";
import { sentenceOf, useResource } from "../resource";
import { addressOf } from "../router";
import { wholeText } from "../text";
import type { StoredMessage, Summary, SummaryItem, TimelineTurn } from "../types";

interface Props {
  sessionId: string;
  turns: TimelineTurn[];
  onChange: () => void;
}

function originOf(summary: Summary): string {
  if (summary.origin === "model") return `by ${summary.model_alias}`;
  return summary.origin === "fallback" ? "deterministic fallback" : "note of an emergency cut";
}

export function Summaries({ sessionId, turns, onChange }: Props) {
  const summaries = useResource<Summary[]>(() => all<Summary>(`sessions/${sessionId}/summaries`), [sessionId]);
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const soon = useThrottled(summaries.reload, 500);
  useNews((news) => (news === null || news.session_id === sessionId) && soon());

  async function change(path: string) {
    setBusy(true);
    setProblem(null);
    try {
      await call(`sessions/${sessionId}/${path}`, { method: "POST" });
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setBusy(false);
      summaries.reload();
      onChange();
    }
  }

  const listed = summaries.value ?? [];
  const active = listed.find((summary) => summary.status === "active");
  const past = listed.filter((summary) => summary.status !== "active");
  return (
    <section aria-labelledby="summaries">
      <div class="title-row">
        <h2 id="summaries">Summary</h2>
        <button type="button" disabled={busy} onClick={() => void change("summaries")}>
          Summarize now
        </button>
        {active && (
          <button type="button" disabled={busy} onClick={() => void change(`summaries/${active.id}/undo`)}>
            Undo
          </button>
        )}
      </div>
      {(problem ?? summaries.problem) && (
        <p class="notice bad" role="alert">
          {problem ?? summaries.problem}
        </p>
      )}
      {active ? (
        <article class="card">
          <SummaryView sessionId={sessionId} summary={active} turns={turns} />
        </article>
      ) : (
        !summaries.loading && <p class="quiet">No summary stands in this session's prompts. All of it is raw.</p>
      )}
      {past.length > 0 && (
        <details class="past">
          <summary>{plural(past.length, "earlier summary", "earlier summaries")}</summary>
          {past.map((summary) => (
            <article class="card" key={summary.id}>
              <SummaryView sessionId={sessionId} summary={summary} turns={turns} />
            </article>
          ))}
        </details>
      )}
    </section>
  );
}

const LISTS = [
  { name: "key_facts", title: "Facts" },
  { name: "decisions", title: "Decisions" },
  { name: "open_questions", title: "Open questions" },
  { name: "action_items", title: "Action items" },
] as const;

function SummaryView({ sessionId, summary, turns }: { sessionId: string; summary: Summary; turns: TimelineTurn[] }) {
  const made = turns.find((turn) => turn.turn_id === summary.created_by_turn_id);
  return (
    <>
      <p class="facts small">
        <strong class={summary.status}>{summary.status}</strong>
        <span>{originOf(summary)}</span>
        <span>{tokens(summary.token_estimate)} tokens</span>
        <span>{dateTime(summary.created_at)}</span>
        {made && <a href={addressOf(sessionId, "window", made.turn_id)}>for turn {made.seq}</a>}
      </p>
      <p class="summary-text">{summary.summary_text}</p>
      {LISTS.map(
        ({ name, title }) =>
          summary[name].length > 0 && (
            <div key={name}>
              <h3>{title}</h3>
              <ul class="items">
                {summary[name].map((item, at) => (
                  <Item key={at} sessionId={sessionId} item={item} />
                ))}
              </ul>
            </div>
          ),
      )}
    </>
  );
}

/** One item, and on demand the messages it came from, word for word. */
function Item({ sessionId, item }: { sessionId: string; item: SummaryItem }) {
  const [open, setOpen] = useState(false);
  return (
    <li>
      {item.text}
      {item.message_ids.length > 0 && (
        <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary class="small quiet">from {plural(item.message_ids.length, "message")}</summary>
          {open && <Sources sessionId={sessionId} ids={item.message_ids} />}
        </details>
      )}
    </li>
  );
}

const MOST_SOURCES = 100;

function Sources({ sessionId, ids }: { sessionId: string; ids: string[] }) {
  const sources = useResource<Page<StoredMessage>>(
    (signal) =>
      call(`sessions/${sessionId}/messages`, { query: { ids: ids.slice(0, MOST_SOURCES).join(",") }, signal }),
    [ids.join(",")],
  );
  if (sources.problem) return <p class="notice bad">{sources.problem}</p>;
  return (
    <ul class="sources">
      {(sources.value?.items ?? []).map((message) => (
        <li key={message.id}>
          <a href={addressOf(sessionId, "window", message.turn_id)}>Turn {message.turn_seq}</a>{" "}
          <span class="quiet">{message.role}</span>
          <blockquote>
            {cut(wholeText({ content: message.content, tool_calls: message.tool_calls ?? [] }), 2000)}
          </blockquote>
        </li>
      ))}
    </ul>
  );
}
