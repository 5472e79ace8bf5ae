import type { ModelList, Session } from "../types";
import { Branch } from "./branch";
import { Pins } from "./pins";
import { Summaries } from "./summaries";

interface Props {
  sessionId: string;
  models: ModelList;
  session: Session | null;
  version: number;
  onChange: () => void;
}

/** What stands in prompts beside the raw window, the summaries with their sources and the pins; and other pasts. */
export function MemoryTab({ sessionId, models, session, version, onChange }: Props) {
  return (
    <div class="memory">
      <Summaries sessionId={sessionId} onChange={onChange} />
      <div>
        <Pins sessionId={sessionId} />
        <Branch sessionId={sessionId} models={models} total={session?.figures?.turns ?? 0} version={version} />
      </div>
    </div>
  );
}
