import type { ComponentChildren } from "preact";
import { cut, day, plural, shortId, tokens } from "../format";
import { messagesById, speakerOf } from "../messages";
import { useResource } from "../resource";
import { imagesOf, wholeText } from "../text";
import type { LaidOut, Prompt, PromptMessage, StoredMessage } from "../types";
import { Pieces } from "../ui/long-text";
import { PinButton } from "../ui/pin-button";
import { REGION_NAMES, Swatch } from "./regions";

/** The messages of a prompt in the order they were sent, each with its region and its tokens; recalled ones together. */
export function PromptBlocks({ sessionId, prompt }: { sessionId: string; prompt: Prompt }) {
  const most = Math.max(1, ...prompt.layout.map((row) => row.tokens));
  const days = useDays(sessionId, prompt.layout);
  const blocks = prompt.messages.flatMap((message, at) => {
    const row = prompt.layout[at];
    if (!row) return [];
    const shared = { sessionId, message, row, most, day: days[at] ?? null };
    return [{ row, block: <PromptBlock key={at} {...shared} /> }];
  });
  const firstRecalled = blocks.findIndex(({ row }) => row.region === "recall");
  const recalled = blocks.filter(({ row }) => row.region === "recall");
  return (
    <ol class="blocks">
      {blocks.map(({ row, block }, at) =>
        row.region !== "recall" ? (
          block
        ) : at === firstRecalled ? (
          <RecalledBlocks key="recalled" own={recalled} />
        ) : null,
      )}
      {prompt.tools.length > 0 && (
        <li class="block tools">
          <details>
            <summary>
              <BlockHead
                region="tools"
                what={plural(prompt.tools.length, "definition")}
                snippet={namesOf(prompt.tools)}
              />
            </summary>
            <pre class="text">{JSON.stringify(prompt.tools, null, 2)}</pre>
          </details>
        </li>
      )}
    </ol>
  );
}

function RecalledBlocks({ own }: { own: { row: LaidOut; block: ComponentChildren }[] }) {
  const size = own.reduce((sum, { row }) => sum + row.tokens, 0);
  const stored = own.filter(({ row }) => row.message_id !== null);
  const turns = [...new Set(stored.map(({ row }) => row.turn_seq).filter((seq) => seq !== null))];
  return (
    <li class="block recall" data-message={stored.map(({ row }) => row.message_id).join(" ")}>
      <details>
        <summary>
          <BlockHead
            region="recall"
            what={plural(stored.length, "older message")}
            snippet={`of ${turns.length === 1 ? "turn" : "turns"} ${turns.join(", ")}`}
            tokens={size}
          />
        </summary>
        <ol class="blocks">{own.map(({ block }) => block)}</ol>
      </details>
    </li>
  );
}

/** The day of each message that was not said on the same day as the one before it. */
function useDays(sessionId: string, layout: LaidOut[]): (string | null)[] {
  const ids = layout.flatMap((row) => row.message_id ?? []);
  const stored = useResource<Map<string, StoredMessage>>(
    (signal) => messagesById(sessionId, ids, signal),
    [sessionId, ids.join()],
  );
  let before: string | null = null;
  return layout.map((row) => {
    const message = stored.value?.get(row.message_id ?? "");
    const own = message ? day(message.said_at) : null;
    if (own === null || own === before) return null;
    before = own;
    return own;
  });
}

interface BlockProps {
  sessionId: string;
  message: PromptMessage;
  row: LaidOut;
  most: number;
  /** Where another day begins. */
  day: string | null;
}

function PromptBlock({ sessionId, message, row, most, day: begins }: BlockProps) {
  const text = wholeText(message);
  const what = [
    speakerOf(message),
    turnOf(row),
    begins,
    isLookBack(message, row) && "look-back",
    row.shortened && "shortened",
  ]
    .filter(Boolean)
    .join(" · ");
  return (
    <li class={`block ${row.region ?? "unknown"}`} data-message={row.message_id ?? undefined}>
      <details>
        <summary>
          <BlockHead region={row.region} what={what} snippet={cut(text, 150)} tokens={row.tokens} most={most} />
        </summary>
        <pre class="text">
          <Pieces text={text} />
        </pre>
        {imagesOf(message.content).map((url, at) => (
          <img key={at} class="sent-image" src={url} alt="Image of the message" />
        ))}
        {row.turn_seq !== null && (
          <PinButton
            sessionId={sessionId}
            name={["turn", row.turn_seq, message.role, partOf(message, row)].join("-")}
            content={text}
            label="Pin this message"
          />
        )}
      </details>
    </li>
  );
}

/** Tells the messages of a turn apart: it may have several of a role, as in a tool loop. */
function partOf(message: PromptMessage, row: LaidOut): string {
  return row.message_id
    ? shortId(row.message_id)
    : (message.tool_call_id ?? message.tool_calls?.[0]?.id ?? "look-back");
}

/** Whether it belongs to a look-back: such messages are of one turn only, and none is stored as a message. */
function isLookBack(message: PromptMessage, row: LaidOut): boolean {
  const isOfTools = message.role === "tool" || (message.tool_calls ?? []).length > 0;
  return isOfTools && row.message_id === null;
}

/** The turn of a message; a preview's own is not stored yet. */
export function turnOf(row: LaidOut): string | null {
  return row.turn_seq === null ? null : `turn ${row.turn_seq}`;
}

interface HeadProps {
  region: LaidOut["region"];
  what: string;
  snippet: string;
  tokens?: number;
  most?: number;
}

export function BlockHead({ region, what, snippet, tokens: count, most }: HeadProps) {
  return (
    <span class="block-head">
      <span class="region-name">
        <Swatch region={region} />
        {region ? REGION_NAMES[region] : "Region not recorded"} <span class="quiet">{what}</span>
      </span>
      {count !== undefined && (
        <span class="size">
          {most !== undefined && (
            <svg
              class={`share ${region ?? "unknown"}`}
              viewBox="0 0 100 6"
              preserveAspectRatio="none"
              aria-hidden="true"
            >
              <rect class="bar" width={Math.max(0.5, (count / most) * 100)} height="6" />
            </svg>
          )}
          <span class="number">
            {tokens(count)} <span class="unseen">tokens</span>
          </span>
        </span>
      )}
      <span class="snippet quiet">{snippet}</span>
    </span>
  );
}

function namesOf(tools: unknown[]): string {
  return tools.map((tool) => (tool as { function?: { name?: string } }).function?.name ?? "tool").join(", ");
}
