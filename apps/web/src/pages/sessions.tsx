import { useEffect, useState } from "preact/hooks";
import { call, type Page } from "../api";
import { ago, cut, dollars, percent, shortId, tokens } from "../format";
import { useConnected, useNews, useThrottled } from "../live";
import { useResource } from "../resource";
import { addressOf, goTo } from "../router";
import type { ModelList, Session, WindowFigures } from "../types";
import { Gauge } from "../ui/gauge";
import { StateBadge } from "../ui/state-badge";

const PAGE_SIZE = 50;

export function SessionsPage({ models }: { models: ModelList }) {
  const [typed, setTyped] = useState("");
  const [words, setWords] = useState("");
  const [more, setMore] = useState<{ words: string; pages: Page<Session>[] }>({ words: "", pages: [] });
  const connected = useConnected();
  const now = useNow(10_000);

  useEffect(() => {
    const timer = setTimeout(() => setWords(typed.trim()), 250);
    return () => clearTimeout(timer);
  }, [typed]);

  const first = useResource<Page<Session>>(
    (signal) => call("sessions", { query: { q: words, figures: true, limit: PAGE_SIZE }, signal }),
    [words],
  );
  const refresh = useThrottled(first.reload, 500);
  useNews(refresh);

  const pages = [...(first.value ? [first.value] : []), ...(more.words === words ? more.pages : [])];
  const sessions = unique(pages.flatMap((page) => page.items));
  const cursor = pages.at(-1)?.next_cursor ?? null;

  async function readOn() {
    const page = await call<Page<Session>>("sessions", {
      query: { q: words, figures: true, limit: PAGE_SIZE, cursor },
    });
    setMore((before) => ({ words, pages: [...(before.words === words ? before.pages : []), page] }));
  }

  async function begin() {
    const session = await call<Session>("sessions", { body: {} });
    goTo(addressOf(session.id, "chat"));
  }

  return (
    <>
      <div class="title-row">
        <h1 tabIndex={-1}>Sessions</h1>
        <span class={connected ? "live on" : "live"} role="status">
          {connected ? "live" : "not live"}
        </span>
        <button type="button" class="primary" onClick={() => void begin()}>
          New session
        </button>
      </div>
      <search class="filter">
        <label for="words" class="unseen">
          Search sessions
        </label>
        <input
          id="words"
          type="search"
          placeholder="Search by first message, goal, label or id"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      </search>
      {first.problem && (
        <p class="notice bad" role="alert">
          {first.problem}
        </p>
      )}
      {sessions.length > 0 ? (
        <SessionTable sessions={sessions} now={now} />
      ) : (
        !first.loading && <Nothing words={words} alias={models.default} looking={cursor !== null} />
      )}
      {cursor !== null && (
        <button type="button" onClick={() => void readOn()}>
          {words ? "Search older sessions" : "Older sessions"}
        </button>
      )}
    </>
  );
}

function SessionTable({ sessions, now }: { sessions: Session[]; now: number }) {
  return (
    <table class="sessions">
      <caption class="unseen">Sessions, newest first</caption>
      <thead>
        <tr>
          <th scope="col">Session</th>
          <th scope="col">State</th>
          <th scope="col" class="number">
            Turns
          </th>
          <th scope="col">Window in use</th>
          <th scope="col" class="number">
            Tokens read
          </th>
          <th scope="col" class="number">
            Cost
          </th>
          <th scope="col" class="number">
            Last turn
          </th>
        </tr>
      </thead>
      <tbody>
        {sessions.map((session) => (
          <SessionRow key={session.id} session={session} now={now} />
        ))}
      </tbody>
    </table>
  );
}

function SessionRow({ session, now }: { session: Session; now: number }) {
  const figures = session.figures;
  const title = session.room_goal ?? figures?.first_input ?? "No messages yet";
  const labels = [session.model_alias, session.policy.preset, session.mode, session.agent_role].filter(Boolean);
  return (
    <tr>
      <th scope="row">
        <a class="row-link" href={addressOf(session.id, figures?.turns ? "window" : "chat")}>
          {cut(title, 110)}
        </a>
        <span class="quiet small block">
          <code>{shortId(session.id)}</code> · {labels.join(" · ")}
          {session.forked_from && " · fork"}
        </span>
      </th>
      <td>
        <StateBadge state={figures?.state ?? null} />
      </td>
      <td class="number" data-label="Turns">
        {tokens(figures?.turns ?? 0)}
      </td>
      <td data-label="Window">{figures?.window ? <WindowInUse window={figures.window} /> : "–"}</td>
      <td class="number" data-label="Tokens read">
        {tokens(figures?.prompt_tokens ?? 0)}
      </td>
      <td class="number" data-label="Cost">
        {dollars(figures?.cost_usd ?? null)}
      </td>
      <td class="number" data-label="Last turn">
        {ago(figures?.last_turn_at ?? null, now)}
      </td>
    </tr>
  );
}

function WindowInUse({ window }: { window: WindowFigures }) {
  const { estimated_input_tokens: used, input_budget: budget } = window;
  return (
    <span class="in-use">
      <Gauge part={used} of={budget} />
      <span class="number">
        {tokens(used)} <span class="quiet">of {tokens(budget)}</span>
      </span>
      <span class="number quiet">{percent(used, budget)}</span>
    </span>
  );
}

function Nothing({ words, alias, looking }: { words: string; alias: string; looking: boolean }) {
  if (words) {
    return <p class="empty">{looking ? "None among the newest sessions." : "No session matches these words."}</p>;
  }
  return (
    <div class="empty">
      <p>There is no session yet.</p>
      <p class="quiet">
        Create one and send a message: the model <code>{alias}</code> answers, and the window shows it.
      </p>
    </div>
  );
}

function unique(sessions: Session[]): Session[] {
  return [...new Map(sessions.map((session) => [session.id, session])).values()];
}

function useNow(everyMs: number): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
