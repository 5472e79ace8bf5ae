// Which older messages came back into a prompt, and what they have in common with the message they came back for.
import { day, plural, tokens } from "../format";
import { speakerOf } from "../messages";
import { addressOf } from "../router";
import { wholeText } from "../text";
import type { Prompt, Recalled, StoredMessage } from "../types";
import { Marked } from "../ui/marked";
import { excerptOf, foundWords, otherReasons, termsOf, wordsWith } from "../words";

const EXCERPT_CHARACTERS = 150;
const MOST_OPEN = 10;
const MOST_WORDS = 8;

interface Props {
  sessionId: string;
  rows: Recalled[];
  messages: Map<string, StoredMessage>;
  prompt: Prompt | null;
}

export function RecalledList({ sessionId, rows, messages, prompt }: Props) {
  const terms = termsOf(userText(prompt));
  const size = rows.reduce((sum, row) => sum + row.tokens, 0);
  return (
    <section class="rule" aria-label="Recalled">
      <h3>Recalled</h3>
      <p class="small quiet">
        Older messages that are no longer in the window in full, brought back because they have words of the user's
        message, or words related to them, or stand beside one that has some.
      </p>
      <details open={rows.length <= MOST_OPEN}>
        <summary>
          {plural(rows.length, "message")}, {plural(size, "token")} with their framing
        </summary>
        <ul class="targets">
          {rows.map((row) => (
            <li key={row.message_id} data-message={row.message_id}>
              <RecalledRow sessionId={sessionId} row={row} message={messages.get(row.message_id)} terms={terms} />
              <span class="number quiet">+{tokens(row.tokens)}</span>
            </li>
          ))}
        </ul>
      </details>
    </section>
  );
}

interface RowProps {
  sessionId: string;
  row: Recalled;
  message: StoredMessage | undefined;
  terms: ReadonlySet<string>;
}

function RecalledRow({ sessionId, row, message, terms }: RowProps) {
  if (!message) return <span>A message</span>;
  const text = wholeText({ ...message, tool_calls: message.tool_calls ?? [] });
  const named = foundWords(row);
  const matched = named.length ? termsOf(named.join(" ")) : terms;
  const found = [...(row.matched ?? []), ...otherReasons(row)];
  const words = found.length ? found : wordsWith(text, matched);
  return (
    <span
      title={`Score ${row.score.toFixed(2)}: how rare the matched words are, how many, and how near the meaning is, for its length`}
    >
      <a href={addressOf(sessionId, "window", message.turn_seq)}>Turn {message.turn_seq}</a>, {speakerOf(message)},{" "}
      {day(message.said_at)}:{" "}
      {words.length ? (
        <strong>{listed(words)}</strong>
      ) : (
        <span class="quiet">stands beside a message that matches</span>
      )}
      <span class="quiet block">
        <Marked text={excerptOf(text, matched, EXCERPT_CHARACTERS)} terms={matched} />
      </span>
    </span>
  );
}

function listed(words: string[]): string {
  const rest = words.length - MOST_WORDS;
  return words.slice(0, MOST_WORDS).join(", ") + (rest > 0 ? ` and ${rest} more` : "");
}

function userText(prompt: Prompt | null): string {
  const at = prompt?.layout.findLastIndex((row) => row.region === "user") ?? -1;
  const message = prompt?.messages[at];
  return message ? wholeText(message) : "";
}
