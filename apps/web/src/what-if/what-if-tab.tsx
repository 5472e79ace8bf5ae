import type { ModelList, Session } from "../types";
import { NextTurn } from "./next-turn";
import { usePolicies } from "./policies";
import { WholePast } from "./whole-past";
import { Failure } from "../ui/failure";

interface Props {
  sessionId: string;
  models: ModelList;
  session: Session | null;
}

/** Another policy or model: for the next turn, and for the whole past. */
export function WhatIfTab({ sessionId, models, session }: Props) {
  const policies = usePolicies();
  if (policies.problem) return <Failure why={policies.problem} onRetry={policies.reload} />;
  if (!policies.value) return <p class="quiet">Reading the policies…</p>;
  const shared = { sessionId, models, policies: policies.value, session };
  return (
    <>
      <NextTurn {...shared} />
      <WholePast {...shared} />
    </>
  );
}
