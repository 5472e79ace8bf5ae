import type { TimelineTurn } from "../types";
import { Pins } from "./pins";
import { Summaries } from "./summaries";

interface Props {
  sessionId: string;
  turns: TimelineTurn[];
  onChange: () => void;
}

/** What stands in prompts beside the raw window: the summary with its sources, and the pins. */
export function MemoryTab({ sessionId, turns, onChange }: Props) {
  return (
    <div class="memory">
      <Summaries sessionId={sessionId} turns={turns} onChange={onChange} />
      <Pins sessionId={sessionId} />
    </div>
  );
}
