import { useEffect, useRef, useState } from "preact/hooks";
import { call, save } from "../api";
import { cut, dollars, percent, plural, tokens } from "../format";
import { LiveStatus } from "../live";
import { sentenceOf } from "../resource";
import { addressOf, type Tab } from "../router";
import { SessionSearch } from "../search/session-search";
import { givenTitle, titleOf } from "../title";
import type { Figures, Session } from "../types";
import { Confirm } from "../ui/confirm";
import { Failure } from "../ui/failure";
import { useKeptFocus } from "../ui/kept-focus";
import { useMaking } from "../ui/making";
import { StateBadge } from "../ui/state-badge";

/** A longer goal would push the tabs down; the prompts have it whole. */
const MOST_OF_GOAL = 300;

interface Props {
  session: Session | null;
  tab: Tab;
  turn: string | null;
  onChange: () => void;
}

export function SessionHead({ session, tab, turn, onChange }: Props) {
  const [naming, setNaming] = useState(false);
  const rename = useKeptFocus<HTMLButtonElement>(naming);
  const title = session ? titleOf(session) : "Reading the session…";
  useEffect(() => {
    document.title = session ? `${title} – Plimsoll` : "Plimsoll inspector";
  }, [title, session]);
  const figures = session?.figures;
  return (
    <header class="session-head">
      <div class="crumb-row">
        <p class="small quiet crumbs">
          <a href={addressOf()}>Sessions</a> / <code class="whole-id">{session?.id ?? "…"}</code>
        </p>
        <LiveStatus />
        {session && <SessionSearch sessionId={session.id} tab={tab} turn={turn} total={figures?.turns ?? 0} />}
      </div>
      {session && naming ? (
        <NameForm
          session={session}
          onLeave={() => setNaming(false)}
          onSaved={() => {
            setNaming(false);
            onChange();
          }}
        />
      ) : (
        <div class="name-row">
          <h1 tabIndex={-1}>{title}</h1>
          {session && (
            <span class="name-actions">
              <button ref={rename} type="button" class="plain small" onClick={() => setNaming(true)}>
                Rename
              </button>
              <Leaving session={session} title={title} />
            </span>
          )}
        </div>
      )}
      {session && figures && (
        <p class="facts">
          <StateBadge state={figures.state} />
          <span>{plural(figures.turns, "turn")}</span>
          <span title="Model alias and policy">
            {session.model_alias} · {String(session.policy.preset ?? "guarded")}
          </span>
          <LastPrompt figures={figures} />
          {figures.cost_usd !== null && (
            <span title="Of all calls, at the catalogue's prices">{dollars(figures.cost_usd)}</span>
          )}
          {session.room_goal && session.room_goal !== title && (
            <span>Goal: {cut(session.room_goal, MOST_OF_GOAL)}</span>
          )}
          {session.forked_from && (
            <a href={addressOf(session.forked_from.session_id, "window", session.forked_from.turn_id)}>forked from</a>
          )}
        </p>
      )}
    </header>
  );
}

/** The session as a file, and its end. */
function Leaving({ session, title }: { session: Session; title: string }) {
  const [asks, setAsks] = useState(false);
  const exporting = useMaking();
  const deleting = useMaking();
  const problem = exporting.error ?? deleting.error;
  const path = `sessions/${session.id}`;
  return (
    <>
      <button
        type="button"
        class="plain small"
        disabled={exporting.busy}
        onClick={() => void exporting.make(() => save(`${path}/export`, `session-${session.id}.json`))}
      >
        Export
      </button>
      <button type="button" class="plain small" disabled={deleting.busy} onClick={() => setAsks(true)}>
        Delete
      </button>
      {asks && (
        <Confirm
          title={`Delete “${cut(title, 60)}”?`}
          action="Delete"
          onConfirm={() =>
            void deleting.make(async () => {
              await call(path, { method: "DELETE" });
              return addressOf();
            })
          }
          onLeave={() => setAsks(false)}
        >
          <p>The session is erased for good, with its turns, messages, summaries, pins and audits. Forks of it stay.</p>
        </Confirm>
      )}
      <Failure why={problem ? sentenceOf(problem) : null} />
    </>
  );
}

/** The newest turn's prompt. One that was refused is not the window: that is still as it was. */
function LastPrompt({ figures: { window, state } }: { figures: Figures }) {
  if (!window) return null;
  const { estimated_input_tokens: size, input_budget: budget } = window;
  return (
    <span title="Tokens of the newest turn's prompt that count against the input budget">
      {state === "rejected" ? "last prompt refused at " : "last prompt "}
      {tokens(size)} of {tokens(budget)} tokens ({percent(size, budget)})
    </span>
  );
}

function NameForm({ session, onLeave, onSaved }: { session: Session; onLeave: () => void; onSaved: () => void }) {
  const [name, setName] = useState(givenTitle(session) ?? titleOf(session));
  const [problem, setProblem] = useState<string | null>(null);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);

  async function save(event: Event) {
    event.preventDefault();
    try {
      // Metadata is replaced as a whole: what others set meanwhile is read first.
      const { metadata } = await call<Session>(`sessions/${session.id}`);
      const { title: _, ...rest } = metadata;
      const body = { metadata: name.trim() ? { ...rest, title: name.trim() } : rest };
      await call(`sessions/${session.id}`, { method: "PATCH", body });
      onSaved();
    } catch (error) {
      setProblem(sentenceOf(error));
    }
  }

  return (
    <form class="name-form" onSubmit={(event) => void save(event)}>
      <label class="unseen" for="session-title">
        Title
      </label>
      <input
        id="session-title"
        maxLength={200}
        placeholder="From the first exchange"
        value={name}
        ref={field}
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && onLeave()}
      />
      <button type="submit" class="primary">
        Save
      </button>
      <button type="button" onClick={onLeave}>
        Cancel
      </button>
      <Failure why={problem} />
    </form>
  );
}
