import { useState } from "preact/hooks";
import { cut, dateTime, day, plural, tokens } from "../format";
import { messagesById, speakerOf } from "../messages";
import { useResource } from "../resource";
import { addressOf } from "../router";
import { wholeText } from "../text";
import type { Summary, SummaryItem } from "../types";
import { type Coverage, turnsOf } from "./coverage";
import { EditSummary, LISTS, type SummaryEdit } from "./edit-summary";
import { Failure } from "../ui/failure";
import { useKeptFocus } from "../ui/kept-focus";

const MOST_SOURCES = 100;
const MOST_CHARACTERS = 2000;
const KEPT = "The summarizer left it out. The service added it, so that it lasts until it is replaced or done.";

interface Props {
  sessionId: string;
  summary: Summary;
  coverage: Coverage | undefined;
  predecessor: Coverage | undefined;
  /** Null while something else is done. */
  onUndo: (() => void) | null;
  /** Whether it was stored. */
  onEdited: (edit: SummaryEdit) => Promise<boolean>;
}

/** A summary: where it stands, what it covers, who made it, and what it says. Only the active one is open. */
export function SummaryCard({ sessionId, summary, coverage, predecessor, onUndo, onEdited }: Props) {
  const active = summary.status === "active";
  const [open, setOpen] = useState(active);
  const [editing, setEditing] = useState(false);
  const heading = useKeptFocus<HTMLHeadingElement>(`${active} ${editing}`);
  const kept = LISTS.reduce((sum, { name }) => sum + summary[name].filter((item) => item.kept).length, 0);
  const title = coverage ? turnsOf(coverage) : "older turns";
  return (
    <article
      class={`card summary-card ${active ? "stands" : ""}`}
      aria-label={`Summary of ${title}, ${summary.status}`}
    >
      <div class="summary-head">
        <h3 ref={heading} tabIndex={-1}>
          {title} <span class={`status ${summary.status}`}>{summary.status}</span>
        </h3>
        <span class="number">{tokens(summary.token_estimate)} tokens</span>
      </div>
      <p class="facts small">
        <span>{originOf(summary)}</span>
        {summary.prompt_tokens !== null && (
          <span>
            read {tokens(summary.prompt_tokens)} tokens, wrote {tokens(summary.completion_tokens ?? 0)}
          </span>
        )}
        {summary.created_by_turn_id ? (
          <a href={addressOf(sessionId, "window", summary.created_by_turn_id)}>made for a turn</a>
        ) : (
          <span>requested, or made after an answer</span>
        )}
        {predecessor && <span>includes the one of {turnsOf(predecessor)}</span>}
        {kept > 0 && <span title={KEPT}>{plural(kept, "kept item")}</span>}
        <span>{dateTime(summary.created_at)}</span>
      </p>
      {active && (
        <div class="buttons">
          <button type="button" disabled={onUndo === null} onClick={() => onUndo?.()}>
            Undo…
          </button>
          <button type="button" disabled={onUndo === null || editing} onClick={() => setEditing(true)}>
            Edit
          </button>
        </div>
      )}
      {editing && (
        <EditSummary
          summary={summary}
          onSave={(edit) => void onEdited(edit).then((stored) => stored && setEditing(false))}
          onLeave={() => setEditing(false)}
        />
      )}
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>Content</summary>
        {open && <Body sessionId={sessionId} summary={summary} />}
      </details>
    </article>
  );
}

function originOf(summary: Summary): string {
  if (summary.origin === "model") return `made by ${summary.model_alias}`;
  if (summary.origin === "person") return "edited by a person";
  return summary.origin === "fallback"
    ? `made by rule, ${summary.model_alias} gave no usable one`
    : "note of an emergency cut";
}

function Body({ sessionId, summary }: { sessionId: string; summary: Summary }) {
  return (
    <>
      <p class="summary-text">{summary.summary_text}</p>
      {LISTS.map(
        ({ name, title }) =>
          summary[name].length > 0 && (
            <div key={name}>
              <h4>
                {title} <span class="number quiet">{tokens(summary[name].length)}</span>
              </h4>
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
      {item.kept && (
        <span class="status kept" title={KEPT}>
          kept
        </span>
      )}
      {item.message_ids.length > 0 && (
        <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary class="small quiet">from {plural(item.message_ids.length, "message")}</summary>
          {open && <Sources sessionId={sessionId} ids={item.message_ids} />}
        </details>
      )}
    </li>
  );
}

function Sources({ sessionId, ids }: { sessionId: string; ids: string[] }) {
  const sources = useResource((signal) => messagesById(sessionId, ids.slice(0, MOST_SOURCES), signal), [ids.join(",")]);
  if (sources.problem) return <Failure why={sources.problem} onRetry={sources.reload} />;
  if (!sources.value) return <p class="quiet small">Reading…</p>;
  return (
    <ul class="sources">
      {[...sources.value.values()].map((message) => (
        <li key={message.id}>
          <a href={addressOf(sessionId, "window", message.turn_seq)}>Turn {message.turn_seq}</a>{" "}
          <span class="quiet">
            {speakerOf(message)}, {day(message.said_at)}
          </span>
          <blockquote>
            {cut(wholeText({ content: message.content, tool_calls: message.tool_calls ?? [] }), MOST_CHARACTERS)}
          </blockquote>
        </li>
      ))}
      {ids.length > MOST_SOURCES && <li class="quiet">and {plural(ids.length - MOST_SOURCES, "message")} more</li>}
    </ul>
  );
}
