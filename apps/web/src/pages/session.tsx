import { useState } from "preact/hooks";
import { call } from "../api";
import { ChatTab } from "../chat/chat-tab";
import { useTurnChanges, useThrottled } from "../live";
import { MemoryTab } from "../memory/memory-tab";
import { useResource } from "../resource";
import { addressOf, type Place, TABS } from "../router";
import type { ModelList, Session } from "../types";
import { Guide, isGuided } from "./guide";
import { SessionHead } from "./session-head";
import { WhatIfTab } from "../what-if/what-if-tab";
import { WindowTab } from "../window/window-tab";
import { Failure } from "../ui/failure";
import { useKeptFocus } from "../ui/kept-focus";

interface Props {
  place: Extract<Place, { page: "session" }>;
  models: ModelList;
}

export function SessionPage({ place, models }: Props) {
  const { sessionId } = place;
  const [version, setVersion] = useState(0);
  const session = useResource<Session>((signal) => call(`sessions/${sessionId}`, { signal }), [sessionId]);
  const refresh = useThrottled(() => {
    session.reload();
    setVersion((before) => before + 1);
  }, 300);
  useTurnChanges((change) => {
    if (change === null || change.session_id === sessionId) refresh();
  });

  const heading = useKeptFocus<HTMLHeadingElement>(session.problem);
  const problem = <Failure why={session.problem} onRetry={session.reload} />;
  const head = <SessionHead session={session.value} tab={place.tab} turn={place.turn} onChange={session.reload} />;
  if (!session.value) {
    // Nothing below the head yet: it grows once the session is there, and would move a button under a click.
    if (!session.problem) return head;
    return (
      <>
        <h1 ref={heading} tabIndex={-1}>
          Session
        </h1>
        {problem}
      </>
    );
  }
  return (
    <>
      {problem}
      {head}
      {isGuided(session.value) && <Guide key={sessionId} place={place} />}
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
          turn={place.turn}
          otherTurn={place.otherTurn}
          total={session.value.figures?.turns ?? null}
          version={version}
        />
      )}
      {place.tab === "chat" && (
        <ChatTab sessionId={sessionId} models={models} session={session.value} turn={place.turn} onTurn={refresh} />
      )}
      {place.tab === "memory" && (
        <MemoryTab sessionId={sessionId} models={models} session={session.value} version={version} onChange={refresh} />
      )}
      {place.tab === "what-if" && <WhatIfTab sessionId={sessionId} models={models} session={session.value} />}
    </>
  );
}
