import { cut, tokens } from "../format";
import { wholeText } from "../text";
import type { LaidOut, Prompt, PromptMessage, TimelineTurn } from "../types";
import { REGION_NAMES, Swatch } from "./regions";

/** The messages of a prompt in the order they were sent, each with its region and its tokens. */
export function PromptBlocks({ prompt, turns }: { prompt: Prompt; turns: TimelineTurn[] }) {
  const most = Math.max(1, ...prompt.layout.map((row) => row.tokens));
  return (
    <ol class="blocks">
      {prompt.messages.map((message, at) => {
        const row = prompt.layout[at];
        return row ? <PromptBlock key={at} message={message} row={row} most={most} turns={turns} /> : null;
      })}
      {prompt.tools.length > 0 && (
        <li class="block tools">
          <details>
            <summary>
              <BlockHead region="tools" what={`${prompt.tools.length} definitions`} snippet={namesOf(prompt.tools)} />
            </summary>
            <pre class="text">{JSON.stringify(prompt.tools, null, 2)}</pre>
          </details>
        </li>
      )}
    </ol>
  );
}

function PromptBlock(props: { message: PromptMessage; row: LaidOut; most: number; turns: TimelineTurn[] }) {
  const { message, row, most, turns } = props;
  const text = wholeText(message);
  const turn = turns.find((each) => each.turn_id === row.turn_id);
  const what = [message.role, turn && `turn ${turn.seq}`, row.shortened && "shortened"].filter(Boolean).join(" · ");
  return (
    <li class={`block ${row.region ?? "unknown"}`}>
      <details>
        <summary>
          <BlockHead region={row.region} what={what} snippet={cut(text, 150)} tokens={row.tokens} most={most} />
        </summary>
        <pre class="text">{text}</pre>
      </details>
    </li>
  );
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
