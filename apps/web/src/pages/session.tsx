import { useState } from "preact/hooks";
import { call, type Page } from "../api";
import { ChatTab } from "../chat/chat-tab";
import { cut, dollars, percent, plural, shortId, tokens } from "../format";
import { useNews, useThrottled } from "../live";
import { MemoryTab } from "../memory/memory-tab";
import { useResource } from "../resource";
import { addressOf, type Place, TABS } from "../router";
import type { ModelList, Session, TimelineTurn } from "../types";
import { StateBadge } from "../ui/state-badge";
import { WhatIfTab } from "../what-if/what-if-tab";
import { WindowTab } from "../window/window-tab";

const TURNS_AT_ONCE = 500;

interface Props {
  place: Extract<Place, { page: "session" }>;
  models: ModelList;
}

export function SessionPage({ place, models }: Props) {
  const { sessionId } = place;
  const [pages, setPages] = useState(1);
  const session = useResource<Session>((signal) => call(`sessions/${sessionId}`, { signal }), [sessionId]);
  const [hasEarlier, setHasEarlier] = useState(false);
  const timeline = useResource<TimelineTurn[]>(
    async (signal) => {
      const turns: TimelineTurn[] = [];
      let cursor: string | null = null;
      for (let page = 0; page < pages; page += 1) {
        const query = { limit: TURNS_AT_ONCE, cursor };
        const read: Page<TimelineTurn> = await call(`sessions/${sessionId}/timeline`, { query, signal });
        turns.push(...read.items);
        cursor = read.next_cursor;
        if (cursor === null) break;
      }
      setHasEarlier(cursor !== null);
      return turns.reverse();
    },
    [sessionId, pages],
  );
  const refresh = useThrottled(() => {
    session.reload();
    timeline.reload();
  }, 300);
  useNews((news) => {
    if (news === null || news.session_id === sessionId) refresh();
  });

  if (session.problem) {
    return (
      <>
        <h1 tabIndex={-1}>Session</h1>
        <p class="notice bad" role="alert">
          {session.problem}
        </p>
      </>
    );
  }
  return (
    <>
      <SessionHead session={session.value} />
      <nav class="tabs" aria-label="Views of this session">
        {TABS.map(({ tab, label }) => (
          <a key={tab} href={addressOf(sessionId, tab)} aria-current={tab === place.tab ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      {place.tab === "window" && (
        <WindowTab
          sessionId={sessionId}
          turnId={place.turnId}
          otherTurnId={place.otherTurnId}
          timeline={timeline}
          hasEarlier={hasEarlier}
          onEarlier={() => setPages((before) => before + 1)}
        />
      )}
      {place.tab === "chat" && (
        <ChatTab
          sessionId={sessionId}
          models={models}
          alias={session.value?.model_alias ?? models.default}
          onTurn={refresh}
        />
      )}
      {place.tab === "memory" && (
        <MemoryTab sessionId={sessionId} models={models} turns={timeline.value ?? []} onChange={refresh} />
      )}
      {place.tab === "what-if" && (
        <WhatIfTab sessionId={sessionId} models={models} timeline={timeline.value ?? []} session={session.value} />
      )}
    </>
  );
}

function SessionHead({ session }: { session: Session | null }) {
  const figures = session?.figures;
  const title = session?.room_goal ?? figures?.first_input ?? "New session";
  const window = figures?.window;
  return (
    <header class="session-head">
      <p class="small quiet crumbs">
        <a href={addressOf()}>Sessions</a> / <code>{session ? shortId(session.id) : "…"}</code>
      </p>
      <h1 tabIndex={-1}>{session ? cut(title, 120) : "Reading the session…"}</h1>
      {session && figures && (
        <p class="facts">
          <StateBadge state={figures.state} />
          <span>{plural(figures.turns, "turn")}</span>
          <span>
            {session.model_alias} · {String(session.policy.preset ?? "guarded")}
          </span>
          {window && (
            <span>
              {tokens(window.estimated_input_tokens)} of {tokens(window.input_budget)} tokens (
              {percent(window.estimated_input_tokens, window.input_budget)})
            </span>
          )}
          {figures.cost_usd !== null && <span>{dollars(figures.cost_usd)}</span>}
          {session.forked_from && (
            <a href={addressOf(session.forked_from.session_id, "window", session.forked_from.turn_id)}>forked from</a>
          )}
        </p>
      )}
    </header>
  );
}
