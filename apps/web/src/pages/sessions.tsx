import { useEffect, useRef, useState } from "preact/hooks";
import { call, type Page } from "../api";
import { ago, cut, dollars, percent, plural, shortId, tokens } from "../format";
import { LiveStatus, useTurnChanges, useThrottled } from "../live";
import { sentenceOf, useResource } from "../resource";
import { addressOf } from "../router";
import { FoundEverywhere } from "../search/everywhere";
import { titleOf } from "../title";
import type { ModelList, Session, TurnState, WindowFigures } from "../types";
import { Failure } from "../ui/failure";
import { Gauge } from "../ui/gauge";
import { useHistoryState } from "../ui/history-state";
import { useMaking } from "../ui/making";
import { useSearchKey } from "../ui/search-key";
import { useSettled } from "../ui/settled";
import { StateBadge, stateWord } from "../ui/state-badge";
import { isGuided } from "./guide";

const PAGE_SIZE = 50;
/** So many sessions are read to be filtered or sorted by what a page of the newest ones does not know. */
const MOST_SORTED = 1000;
const SORTED_AT_ONCE = 200;

const SORTS = {
  created: { label: "newest first", of: () => 0 },
  active: { label: "last turn", of: (each: Session) => -Date.parse(each.figures?.last_turn_at ?? each.created_at) },
  turns: { label: "most turns", of: (each: Session) => -(each.figures?.turns ?? 0) },
  window: { label: "fullest window", of: (each: Session) => -shareOf(each) },
  cost: { label: "highest cost", of: (each: Session) => -(each.figures?.cost_usd ?? -1) },
} as const;
type Sort = keyof typeof SORTS;
const STATES: readonly TurnState[] = ["completed", "running", "awaiting_tools", "failed", "rejected", "cancelled"];

export function SessionsPage({ models }: { models: ModelList }) {
  const field = useSearchKey();
  const [typed, setTyped] = useHistoryState("words", "");
  const words = useSettled(typed.trim(), 250);
  const [sort, setSort] = useHistoryState<Sort>("sort", "created");
  const [state, setState] = useHistoryState<TurnState | "">("state", "");
  const making = useMaking();
  const importing = useMaking();
  const now = useNow(10_000);
  useEffect(() => {
    document.title = "Sessions – Plimsoll";
  }, []);

  const isPartial = state === "" && sort === "created";
  const [asked, setAsked] = useState({ words: "", more: 0 });
  const more = asked.words === words ? asked.more : 0;
  const listed = useResource<Page<Session>>(
    (signal) => (isPartial ? pagesOf(words, 1 + more, signal) : newestOf(words, more, signal)),
    [words, isPartial, more],
  );
  const refresh = useThrottled(listed.reload, 500);
  useTurnChanges(refresh);

  const read = listed.value?.items ?? [];
  const sessions = read
    .filter((session) => !state || session.figures?.state === state)
    .toSorted((one, other) => SORTS[sort].of(one) - SORTS[sort].of(other));
  const cursor = listed.value?.next_cursor ?? null;
  const only = read.length === 1 && !words ? read[0] : undefined;

  const begin = () => making.make(async () => addressOf((await call<Session>("sessions", { body: {} })).id, "chat"));
  const files = useRef<HTMLInputElement>(null);
  const load = (input: HTMLInputElement) =>
    importing.make(async () => {
      const [file] = input.files ?? [];
      input.value = ""; // so that the same file can be chosen again
      if (file) return addressOf((await call<Session>("sessions/import", { body: await bodyOf(file) })).id);
    });

  return (
    <>
      <div class="title-row">
        <h1 tabIndex={-1}>Sessions</h1>
        <LiveStatus />
        <input
          ref={files}
          type="file"
          hidden
          accept=".json,application/json"
          aria-label="An exported session, or a list of messages"
          onChange={(event) => void load(event.currentTarget)}
        />
        <button
          type="button"
          title="An exported session, or a list of messages"
          disabled={importing.busy}
          onClick={() => files.current?.click()}
        >
          {importing.busy ? "Importing…" : "Import"}
        </button>
        <button type="button" class="primary" disabled={making.busy} onClick={() => void begin()}>
          New session
        </button>
      </div>
      <search class="list-controls">
        <div class="filter">
          <label for="words" class="unseen">
            Search sessions
          </label>
          <input
            id="words"
            type="search"
            placeholder="Search titles, goals, labels, ids and messages"
            title="Ctrl+K leads here"
            ref={field}
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
          />
        </div>
        <label class="inline">
          State
          <select value={state} onChange={(event) => setState(event.currentTarget.value as TurnState | "")}>
            <option value="">all</option>
            {STATES.map((each) => (
              <option key={each} value={each}>
                {each === "completed" ? "idle" : stateWord(each)}
              </option>
            ))}
          </select>
        </label>
        <label class="inline">
          Sort by
          <select value={sort} onChange={(event) => setSort(event.currentTarget.value as Sort)}>
            {Object.entries(SORTS).map(([name, { label }]) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        </label>
      </search>
      <Failure why={making.error ? sentenceOf(making.error) : null} />
      <Failure why={importing.error ? sentenceOf(importing.error) : null} />
      <Failure why={listed.problem} onRetry={listed.reload} />
      {listed.loading && read.length === 0 && <p class="quiet">Reading the sessions…</p>}
      {only && isGuided(only) && (
        <p class="notice">
          New here? <a href={addressOf(only.id)}>Open the session “{titleOf(only)}”</a>: a recorded conversation, with a
          guide in six steps.
        </p>
      )}
      {sessions.length > 0 ? (
        <SessionTable sessions={sessions} now={now} />
      ) : state && read.length > 0 ? (
        <p class="empty">None of the {plural(read.length, "session")} read so far has this state.</p>
      ) : (
        !listed.loading && !listed.problem && <Nothing words={words} alias={models.default} looking={cursor !== null} />
      )}
      {cursor !== null && !isPartial && (
        <p class="small quiet">Of the newest {plural(read.length, "session")}; older ones are not read yet.</p>
      )}
      {cursor !== null && (
        <button type="button" onClick={() => setAsked({ words, more: more + 1 })}>
          {words ? "Search older sessions" : "Older sessions"}
        </button>
      )}
      {words && <FoundEverywhere key={words} words={words} />}
    </>
  );
}

/** What the service imports: a list of messages is a member of an object there. */
async function bodyOf(file: File): Promise<Blob> {
  const start = await file.slice(0, 100).text();
  return start.trimStart().startsWith("[") ? new Blob(['{"messages":', file, "}"]) : file;
}

/** The newest sessions, so many pages of them. */
function pagesOf(words: string, count: number, signal: AbortSignal): Promise<Page<Session>> {
  return readWhile((_, pages) => pages < count, words, PAGE_SIZE, signal);
}

/** The newest sessions, as many as are sorted, and so many pages more. */
function newestOf(words: string, more: number, signal: AbortSignal): Promise<Page<Session>> {
  return readWhile((items) => items < MOST_SORTED + more * SORTED_AT_ONCE, words, SORTED_AT_ONCE, signal);
}

async function readWhile(
  isWanted: (items: number, pages: number) => boolean,
  q: string,
  limit: number,
  signal: AbortSignal,
): Promise<Page<Session>> {
  const items: Session[] = [];
  let cursor: string | null = null;
  let pages = 0;
  do {
    const query = { q, figures: true, limit, cursor };
    const page: Page<Session> = await call("sessions", { query, signal });
    items.push(...page.items);
    cursor = page.next_cursor;
    pages += 1;
  } while (cursor !== null && isWanted(items.length, pages));
  return { items, next_cursor: cursor };
}

function SessionTable({ sessions, now }: { sessions: Session[]; now: number }) {
  const isPriced = sessions.some((session) => session.figures?.cost_usd != null);
  return (
    <table class="sessions">
      <caption class="unseen">Sessions</caption>
      <thead>
        <tr>
          <th scope="col">Session</th>
          <th scope="col">State</th>
          <th scope="col" class="number">
            Turns
          </th>
          <th scope="col" title="Tokens of the newest turn's prompt that count against the input budget">
            Last prompt
          </th>
          <th
            scope="col"
            class="number"
            title="Prompt tokens of all calls that were made here; imported turns have none"
          >
            Tokens sent
          </th>
          {isPriced && (
            <th scope="col" class="number" title="Of all calls, at the catalogue's prices">
              Cost
            </th>
          )}
          <th scope="col" class="number" title="When the newest turn ended">
            Last turn
          </th>
        </tr>
      </thead>
      <tbody>
        {sessions.map((session) => (
          <SessionRow key={session.id} session={session} now={now} isPriced={isPriced} />
        ))}
      </tbody>
    </table>
  );
}

function SessionRow({ session, now, isPriced }: { session: Session; now: number; isPriced: boolean }) {
  const figures = session.figures;
  const title = titleOf(session);
  const goal = session.room_goal && session.room_goal !== title ? cut(session.room_goal, 80) : null;
  const labels = [session.model_alias, session.policy.preset, session.mode, session.agent_role, goal].filter(Boolean);
  return (
    <tr>
      <th scope="row">
        <a class="row-link" href={addressOf(session.id, figures?.turns ? "window" : "chat")}>
          {title}
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
      <td data-label="Last prompt">
        {figures?.window ? <LastPrompt window={figures.window} isRefused={figures.state === "rejected"} /> : "–"}
      </td>
      <td class="number" data-label="Tokens sent">
        {figures?.prompt_tokens ? tokens(figures.prompt_tokens) : "–"}
      </td>
      {isPriced && (
        <td class="number" data-label="Cost">
          {dollars(figures?.cost_usd ?? null)}
        </td>
      )}
      <td class="number" data-label="Last turn">
        {ago(figures?.last_turn_at ?? null, now)}
      </td>
    </tr>
  );
}

/** What was sent last; a refused prompt was not, and says so. */
function LastPrompt({ window, isRefused }: { window: WindowFigures; isRefused: boolean }) {
  const { estimated_input_tokens: used, input_budget: budget } = window;
  return (
    <span class="in-use">
      <Gauge part={used} of={budget} />
      <span class="number">
        {isRefused && "refused at "}
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

function shareOf({ figures }: Session): number {
  return figures?.window ? figures.window.estimated_input_tokens / Math.max(1, figures.window.input_budget) : -1;
}

function useNow(everyMs: number): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
