// Two prompts of one session, message by message: what left, what came, and what was rewritten.
import { diffArrays, diffWordsWithSpace } from "diff";
import { cut, plural, tokens } from "../format";
import { wholeText } from "../text";
import type { LaidOut, Prompt } from "../types";
import { Pieces } from "../ui/long-text";
import { BlockHead, turnOf } from "./prompt";

interface Block {
  key: string;
  text: string;
  role: string;
  row: LaidOut;
}

type Change =
  | { kind: "same"; blocks: Block[] }
  | { kind: "left" | "came"; block: Block }
  | { kind: "rewritten"; was: Block; now: Block };

const LONGEST_WORD_DIFF = 40_000;

export function PromptDiff({ was, now }: { was: Prompt; now: Prompt }) {
  const changes = changesOf(blocksOf(was), blocksOf(now));
  const count = (kind: Change["kind"]) => changes.filter((change) => change.kind === kind).length;
  return (
    <>
      <p class="quiet">
        {plural(count("left"), "message")} left, {count("came")} came, {count("rewritten")} rewritten.
      </p>
      <ol class="blocks diff">
        {changes.map((change, at) => (
          <ChangeRow key={at} change={change} />
        ))}
      </ol>
    </>
  );
}

function ChangeRow({ change }: { change: Change }) {
  if (change.kind === "same") {
    const size = change.blocks.reduce((sum, block) => sum + block.row.tokens, 0);
    return (
      <li class="block same quiet">
        {plural(change.blocks.length, "message")} unchanged ({tokens(size)} tokens)
      </li>
    );
  }
  const block = change.kind === "rewritten" ? change.now : change.block;
  const word = { left: "left", came: "came", rewritten: "rewritten" }[change.kind];
  const what = [block.role, turnOf(block.row)].filter(Boolean).join(" · ");
  return (
    <li class={`block ${block.row.region ?? "unknown"} ${change.kind}`}>
      <details open={change.kind === "rewritten"}>
        <summary>
          <span class="change">{word}</span>
          <BlockHead region={block.row.region} what={what} snippet={cut(block.text, 120)} tokens={block.row.tokens} />
        </summary>
        {change.kind === "rewritten" ? (
          <Words was={change.was.text} now={change.now.text} />
        ) : (
          <pre class="text">
            <Pieces text={block.text} />
          </pre>
        )}
      </details>
    </li>
  );
}

function Words({ was, now }: { was: string; now: string }) {
  if (was.length + now.length > LONGEST_WORD_DIFF) {
    return (
      <pre class="text">
        <Pieces text={now} />
      </pre>
    );
  }
  return (
    <pre class="text">
      {diffWordsWithSpace(was, now).map((part, at) =>
        part.added ? (
          <ins key={at}>{part.value}</ins>
        ) : part.removed ? (
          <del key={at}>{part.value}</del>
        ) : (
          <span key={at}>{part.value}</span>
        ),
      )}
    </pre>
  );
}

function blocksOf(prompt: Prompt): Block[] {
  return prompt.messages.flatMap((message, at) => {
    const row = prompt.layout[at];
    if (!row) return [];
    const text = wholeText(message);
    return [{ key: `${message.role} ${text}`, text, role: message.role, row }];
  });
}

function changesOf(was: Block[], now: Block[]): Change[] {
  const changes: Change[] = [];
  const runs = diffArrays(was, now, { comparator: (left, right) => left.key === right.key });
  for (let at = 0; at < runs.length; at += 1) {
    const run = runs[at];
    const next = runs[at + 1];
    if (!run) continue;
    if (run.removed && next?.added) {
      changes.push(...paired(run.value, next.value));
      at += 1;
    } else if (run.removed) changes.push(...run.value.map((block): Change => ({ kind: "left", block })));
    else if (run.added) changes.push(...run.value.map((block): Change => ({ kind: "came", block })));
    else changes.push({ kind: "same", blocks: run.value });
  }
  return changes;
}

/** A summary, pin or layer in the place of its like was rewritten; so was a message that was shortened. */
function paired(left: Block[], came: Block[]): Change[] {
  const rest = [...came];
  const changes = left.map((block): Change => {
    const at = rest.findIndex(
      (other) =>
        (block.row.message_id !== null && other.row.message_id === block.row.message_id) ||
        (block.row.message_id === null && other.row.message_id === null && other.row.region === block.row.region),
    );
    const [now] = at < 0 ? [] : rest.splice(at, 1);
    return now ? { kind: "rewritten", was: block, now } : { kind: "left", block };
  });
  return [...changes, ...rest.map((block): Change => ({ kind: "came", block }))];
}
