import { dateTime, day, dollars, elapsed, tokens } from "../format";
import { addressOf } from "../router";
import type { ProblemBody } from "../api";
import type { ListedTurn, TurnState } from "../types";
import { LongText } from "../ui/long-text";
import { PinButton } from "../ui/pin-button";
import { stateWord } from "../ui/state-badge";

const LONG = 1200;
const LONG_WHERE_REFUSED = 160;
const LONG_ANSWER = 20_000;

/** A message with a file pasted into it does not push the conversation away. */
export function UserText({ text, most = LONG }: { text: string; most?: number }) {
  return (
    <div class="user-text">
      <LongText text={text} most={most} />
    </div>
  );
}

/** What a cancelled turn says of itself has its title in it. */
function whyOf({ title, detail }: ProblemBody, status: TurnState): string {
  return status === "cancelled" ? detail : `${title}: ${detail}`;
}

interface Props {
  turn: ListedTurn;
  /** Where that is known: a line has the day where another one begins. */
  before: ListedTurn | undefined;
  sessionId: string;
  /** Whether the page shows elsewhere why it was refused. */
  isExplained: boolean;
  onPinned: () => void;
}

export function TurnRow({ turn, before, sessionId, isExplained, onPinned }: Props) {
  const begins = turn.seq === 1 || (before !== undefined && day(before.said_at) !== day(turn.said_at));
  const wasSaidBefore = turn.said_at !== turn.created_at;
  return (
    <>
      {begins && (
        <p class="small quiet day-line">
          <time dateTime={turn.said_at}>{day(turn.said_at)}</time>
        </p>
      )}
      {turn.name && <p class="small quiet user-name">{turn.name}</p>}
      <UserText text={turn.user_input} most={turn.status === "rejected" ? LONG_WHERE_REFUSED : LONG} />
      {turn.assistant_output && <LongText class="answer" text={turn.assistant_output} most={LONG_ANSWER} />}
      {turn.error?.partial_output && (
        <LongText class="answer quiet" text={turn.error.partial_output} most={LONG_ANSWER} />
      )}
      {turn.error && !isExplained && (
        <p class={turn.status === "cancelled" ? "small quiet" : "small failed-why"}>{whyOf(turn.error, turn.status)}</p>
      )}
      <p class="small quiet turn-foot">
        <a href={addressOf(sessionId, "window", turn.seq)}>Turn {turn.seq}</a>
        <time
          dateTime={turn.said_at}
          title={
            wasSaidBefore ? `When it was said; posted ${dateTime(turn.created_at)}` : "When the message was posted"
          }
        >
          {dateTime(turn.said_at)}
        </time>
        {turn.completed_at && turn.completed_at !== turn.created_at && (
          <span title="From the message to the end of the answer">{elapsed(turn.created_at, turn.completed_at)}</span>
        )}
        {turn.prompt_tokens !== null && (
          <span title="Prompt tokens, by the provider">{tokens(turn.prompt_tokens)} in</span>
        )}
        {turn.completion_tokens !== null && (
          <span title="Completion tokens, by the provider">{tokens(turn.completion_tokens)} out</span>
        )}
        {turn.finish_reason === "length" && <span title="The answer reached its limit of tokens">cut off</span>}
        {turn.cost_usd !== null && <span>{dollars(turn.cost_usd)}</span>}
        {turn.status !== "completed" && <span>{stateWord(turn.status)}</span>}
        <PinButton
          sessionId={sessionId}
          name={`turn-${turn.seq}-user`}
          content={turn.user_input}
          label="Pin message"
          onPinned={onPinned}
        />
        {turn.assistant_output && (
          <PinButton
            sessionId={sessionId}
            name={`turn-${turn.seq}-assistant`}
            content={turn.assistant_output}
            label="Pin answer"
            onPinned={onPinned}
          />
        )}
      </p>
    </>
  );
}
