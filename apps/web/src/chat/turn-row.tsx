import { useState } from "preact/hooks";
import { dateTime, dollars, elapsed, tokens } from "../format";
import { addressOf } from "../router";
import type { Turn } from "../types";
import { PinButton } from "../ui/pin-button";
import { stateWord } from "../ui/state-badge";

const LONG = 1200;
const LONG_WHERE_REFUSED = 160;

/** A message with a file pasted into it does not push the conversation away. */
export function UserText({ text, most = LONG }: { text: string; most?: number }) {
  const [whole, setWhole] = useState(text.length <= most);
  return (
    <div class="user-text">
      <p>{whole ? text : `${text.slice(0, most)}…`}</p>
      {!whole && (
        <button type="button" class="plain small" onClick={() => setWhole(true)}>
          Show all {tokens(text.length)} characters
        </button>
      )}
    </div>
  );
}

interface Props {
  turn: Turn;
  sessionId: string;
  /** Whether the page shows elsewhere why it was refused. */
  isExplained: boolean;
}

export function TurnRow({ turn, sessionId, isExplained }: Props) {
  return (
    <>
      <UserText text={turn.user_input} most={turn.status === "rejected" ? LONG_WHERE_REFUSED : LONG} />
      {turn.assistant_output && <p class="answer">{turn.assistant_output}</p>}
      {turn.error && !isExplained && (
        <p class="small failed-why">
          {turn.error.title}: {turn.error.detail}
        </p>
      )}
      <p class="small quiet turn-foot">
        <a href={addressOf(sessionId, "window", turn.seq)}>Turn {turn.seq}</a>
        <time dateTime={turn.created_at} title="When the message was posted">
          {dateTime(turn.created_at)}
        </time>
        {turn.completed_at && (
          <span title="From the message to the end of the answer">{elapsed(turn.created_at, turn.completed_at)}</span>
        )}
        {turn.prompt_tokens !== null && (
          <span title="Prompt tokens, by the provider">{tokens(turn.prompt_tokens)} in</span>
        )}
        {turn.completion_tokens !== null && (
          <span title="Completion tokens, by the provider">{tokens(turn.completion_tokens)} out</span>
        )}
        {turn.cost_usd !== null && <span>{dollars(turn.cost_usd)}</span>}
        {turn.status !== "completed" && <span>{stateWord(turn.status)}</span>}
        <PinButton sessionId={sessionId} name={`turn-${turn.seq}-user`} content={turn.user_input} label="Pin message" />
        {turn.assistant_output && (
          <PinButton
            sessionId={sessionId}
            name={`turn-${turn.seq}-assistant`}
            content={turn.assistant_output}
            label="Pin answer"
          />
        )}
      </p>
    </>
  );
}
