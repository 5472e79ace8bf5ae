import { addressOf, type Place, TABS } from "../router";
import type { ModelList } from "../types";
import { MemoryTab } from "./memory";
import { WhatIfTab } from "./what-if";

export function SessionPage({ place, models }: { place: Extract<Place, { page: "session" }>; models: ModelList }) {
  const { sessionId, tab } = place;
  return (
    <>
      <h1 tabIndex={-1}>Session {sessionId}</h1>
      <nav aria-label="Session">
        {TABS.map((each) => (
          <a key={each.tab} href={addressOf(sessionId, each.tab)} aria-current={each.tab === tab ? "page" : undefined}>
            {each.label}{" "}
          </a>
        ))}
      </nav>
      {tab === "memory" && <MemoryTab sessionId={sessionId} models={models} />}
      {tab === "what-if" && <WhatIfTab sessionId={sessionId} models={models} />}
    </>
  );
}
