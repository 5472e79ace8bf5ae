import type { ModelList, TimelineTurn } from "../types";
import { Branch } from "./branch";
import { Pins } from "./pins";
import { Summaries } from "./summaries";

interface Props {
  sessionId: string;
  models: ModelList;
  turns: TimelineTurn[];
  onChange: () => void;
}

/** What stands in prompts beside the raw window, the summaries with their sources and the pins; and other pasts. */
export function MemoryTab({ sessionId, models, turns, onChange }: Props) {
  return (
    <div class="memory">
      <Summaries sessionId={sessionId} turns={turns} onChange={onChange} />
      <div>
        <Pins sessionId={sessionId} />
        <Branch sessionId={sessionId} models={models} turns={turns} />
      </div>
    </div>
  );
}
