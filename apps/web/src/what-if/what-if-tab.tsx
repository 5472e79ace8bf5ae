import type { ModelList, Session, TimelineTurn } from "../types";
import { NextTurn } from "./next-turn";
import { WholePast } from "./whole-past";

interface Props {
  sessionId: string;
  models: ModelList;
  timeline: TimelineTurn[];
  session: Session | null;
}

export function WhatIfTab({ sessionId, models, timeline, session }: Props) {
  return (
    <>
      <NextTurn sessionId={sessionId} models={models} turns={timeline} />
      <WholePast sessionId={sessionId} models={models} own={String(session?.policy.preset ?? "guarded")} />
    </>
  );
}
