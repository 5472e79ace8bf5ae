// What a prompt did not hold, why, and by which rule: from the audit's trim log, and from what had left before.
import { useState } from "preact/hooks";
import { call } from "../api";
import { cut, plural, tokens } from "../format";
import { messagesById, speakerOf } from "../messages";
import { useResource } from "../resource";
import { addressOf } from "../router";
import { wholeText } from "../text";
import type { Audit, ListedTurn, Prompt, StoredMessage, TimelineTurn, TrimAction } from "../types";
import { RecalledList } from "./recalled";
import { type Decided, ruleOf } from "./rules";
import { Failure } from "../ui/failure";

const MOST_TARGETS = 100;

interface Props {
  sessionId: string;
  audit: Decided;
  prompt: Prompt | null;
  turn: Pick<TimelineTurn, "seq" | "window"> & { turn_id?: string };
  /** Which one it is, where two stand on a page. */
  of?: string;
}

export function LeftOut({ sessionId, audit, prompt, turn, of }: Props) {
  const log = audit.context_trim_log;
  const ids = messageIdsOf(audit);
  const cited = useResource((signal) => messagesById(sessionId, ids, signal), [sessionId, ids.join(",")]);
  const messages = cited.value ?? new Map<string, StoredMessage>();
  const turnIds = idsOf("turn", audit);
  const single = useResource((signal) => turnNumbers(sessionId, turnIds, signal), [sessionId, turnIds.join(",")]);
  const numbers = single.value ?? new Map<string, number>();
  const groups = grouped(log.actions);
  const before = goneBefore(prompt, audit, turn.seq, numbers);
  const recalled = log.recalled ?? [];
  return (
    <section aria-label={of ? `Left out: ${of}` : "Left out"}>
      <h3>Left out</h3>
      <Failure why={cited.problem} onRetry={cited.reload} />
      <Failure why={single.problem} onRetry={single.reload} />
      {prompt && groups.length === 0 && before.length === 0 && (
        <p class="quiet">Nothing: this prompt has all earlier turns in full.</p>
      )}
      {audit.overflow_rejected && (
        <p class="quiet">Everything: the turn was refused. {groups.length > 0 && "This was left out in trying:"}</p>
      )}
      {groups.map((group) => (
        <RuleGroup key={group.key} group={group} audit={audit} turn={turn}>
          {group.actions.slice(0, MOST_TARGETS).map((action) => (
            <li key={`${action.kind} ${action.target}`}>
              <Target
                sessionId={sessionId}
                action={action}
                messages={messages}
                numbers={numbers}
                turnId={turn.turn_id}
              />
              <span class="number quiet">{signed(action.tokens_removed_est)}</span>
            </li>
          ))}
        </RuleGroup>
      ))}
      {before.map((group) => (
        <div class="rule" key={group.why}>
          <h4>{group.why}</h4>
          <p class="small quiet">{group.rule}</p>
          <p>
            {group.ranges.map((range, at) => (
              <span key={range.first}>
                {at > 0 && ", "}
                <TurnsLink sessionId={sessionId} {...range} />
              </span>
            ))}
          </p>
        </div>
      ))}
      {recalled.length > 0 && (
        <RecalledList sessionId={sessionId} rows={recalled} messages={messages} prompt={prompt} />
      )}
      {log.looked_back && <LookedBack {...log.looked_back} />}
    </section>
  );
}

/** What the model asked for by itself is in the prompt, marked as a look-back, and in no later one. */
function LookedBack({ messages, tokens: size }: { messages: number; tokens: number }) {
  return (
    <section class="rule" aria-label="Look-backs">
      <h3>Look-backs</h3>
      <p class="small quiet">
        In this turn the model read older messages back: {plural(messages, "message")} with calls and results,{" "}
        {plural(size, "token")}. They stand in this prompt as “look-back” and in no later one.
      </p>
    </section>
  );
}

interface Group {
  key: string;
  kind: string;
  reason: string;
  actions: TrimAction[];
}

function RuleGroup(props: { group: Group; audit: Decided; turn: Props["turn"]; children: preact.ComponentChildren }) {
  const { group, audit, turn, children } = props;
  const rule = ruleOf(group.kind, group.reason, audit, turn.window);
  const removed = group.actions.reduce((sum, action) => sum + action.tokens_removed_est, 0);
  return (
    <div class="rule">
      <h4>
        {rule.what} <span class="number quiet">{signed(removed)}</span>
      </h4>
      <p class="small quiet">{rule.why}</p>
      <ul class="targets">{children}</ul>
      {group.actions.length > MOST_TARGETS && (
        <p class="small quiet">and {plural(group.actions.length - MOST_TARGETS, "more item")}</p>
      )}
    </div>
  );
}

interface TargetProps {
  sessionId: string;
  action: TrimAction;
  messages: Map<string, StoredMessage>;
  numbers: Map<string, number>;
  /** Of a stored turn: what is in a range of messages can be listed. */
  turnId: string | undefined;
}

function Target({ sessionId, action, messages, numbers, turnId }: TargetProps) {
  const [kind, id] = splitOnce(action.target);
  const count = action.count ?? 1;
  switch (kind) {
    case "turn":
      return <a href={addressOf(sessionId, "window", id)}>{numbers.has(id) ? `Turn ${numbers.get(id)}` : "A turn"}</a>;
    case "summary":
      return (
        <span>
          <a href={addressOf(sessionId, "memory")}>The summary</a> <span class="quiet">in their place</span>
        </span>
      );
    case "turns": {
      const [first, last] = rangeOf(id);
      const some = count < last - first + 1;
      return (
        <span>
          {some && `${count} of `}
          <TurnsLink sessionId={sessionId} first={first} last={last} />
        </span>
      );
    }
    case "messages":
      return turnId ? (
        <Singly sessionId={sessionId} turnId={turnId} action={action} />
      ) : (
        <span>{plural(count, "message")}</span>
      );
    case "message":
      return <span>{messageName(messages.get(id))}</span>;
    default:
      return <span>{action.target.replace("_", " ")}</span>;
  }
}

function TurnsLink({ sessionId, first, last }: { sessionId: string; first: number; last: number }) {
  return (
    <a href={addressOf(sessionId, "window", first)}>{first === last ? `Turn ${first}` : `Turns ${first}–${last}`}</a>
  );
}

/** A range of messages; which ones they are is read when it is opened. */
function Singly({ sessionId, turnId, action }: { sessionId: string; turnId: string; action: TrimAction }) {
  const [open, setOpen] = useState(false);
  const [first, last] = rangeOf(splitOnce(action.target)[1]);
  const names = useResource<StoredMessage[]>(
    async (signal) => {
      if (!open) return [];
      const path = `sessions/${sessionId}/turns/${turnId}/audit`;
      const { context_trim_log: log } = await call<Audit>(path, { query: { expand: "actions" }, signal });
      const own = log.actions.filter((each) => each.kind === action.kind && each.reason === action.reason);
      const ids = own.map((each) => splitOnce(each.target)).filter(([kind]) => kind === "message");
      const found = await messagesById(
        sessionId,
        ids.slice(0, MOST_TARGETS).map(([, id]) => id),
        signal,
      );
      return [...found.values()].filter((message) => first <= message.seq && message.seq <= last);
    },
    [open],
  );
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{plural(action.count ?? 1, "message")}</summary>
      <Failure why={names.problem} onRetry={names.reload} />
      {open && names.loading && <p class="quiet">Reading…</p>}
      <ul class="targets">
        {(names.value ?? []).map((message) => (
          <li key={message.id}>
            <span>{messageName(message)}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

function messageName(message: StoredMessage | undefined) {
  if (!message) return "A message";
  return (
    <>
      Turn {message.turn_seq}, {speakerOf(message)}{" "}
      <span class="quiet">{cut(wholeText({ ...message, tool_calls: message.tool_calls ?? [] }), 70)}</span>
    </>
  );
}

function messageIdsOf(audit: Decided): string[] {
  return [...idsOf("message", audit), ...(audit.context_trim_log.recalled ?? []).map((row) => row.message_id)];
}

/** The ids of the single messages or turns that the log names, as many as are shown. */
function idsOf(kind: "message" | "turn", audit: Decided): string[] {
  const targets = audit.context_trim_log.actions.map((action) => splitOnce(action.target));
  return targets.flatMap(([of, id]) => (of === kind ? id : [])).slice(0, MOST_TARGETS);
}

async function turnNumbers(sessionId: string, ids: string[], signal: AbortSignal): Promise<Map<string, number>> {
  const turns = ids.map((id) => call<ListedTurn>(`sessions/${sessionId}/turns/${id}`, { signal }));
  return new Map((await Promise.all(turns)).map((turn) => [turn.id, turn.seq]));
}

function grouped(actions: TrimAction[]): Group[] {
  const groups = new Map<string, Group>();
  for (const action of actions) {
    const key = `${action.kind} ${action.reason}`;
    const group = groups.get(key) ?? { key, kind: action.kind, reason: action.reason, actions: [] };
    group.actions.push(action);
    groups.set(key, group);
  }
  return [...groups.values()];
}

interface SeqRange {
  first: number;
  last: number;
}

interface Gone {
  why: string;
  rule: string;
  ranges: SeqRange[];
}

/** Earlier turns of which this prompt has at most recalled messages, and which no action of this turn took out. */
function goneBefore(prompt: Prompt | null, audit: Decided, seq: number, numbers: Map<string, number>): Gone[] {
  if (!prompt) return [];
  const held = new Set(prompt.layout.flatMap((row) => (row.region === "recall" ? [] : (row.turn_seq ?? []))));
  const ranges = audit.context_trim_log.actions
    .map((action) => splitOnce(action.target))
    .filter(([kind]) => kind === "turns")
    .map(([, range]) => rangeOf(range));
  const taken = [...ranges, ...[...numbers.values()].map((each) => [each, each] as const)];
  const inFull = prompt.layout.filter((row) => row.region === "history").flatMap((row) => row.turn_seq ?? []);
  const firstInFull = Math.min(seq, ...inFull);
  const gone: SeqRange[] = [];
  for (let each = 1; each < seq; each += 1) {
    if (held.has(each) || taken.some(([first, last]) => first <= each && each <= last)) continue;
    const range = gone.at(-1);
    if (range && range.last === each - 1 && each !== firstInFull) range.last = each;
    else gone.push({ first: each, last: each });
  }
  const summarized = prompt.layout.some((row) => row.region === "summary");
  const older = summarized ? gone.filter((range) => range.last < firstInFull) : [];
  const found: Gone[] = [];
  if (older.length) {
    const rule =
      "The summary in this prompt replaces them until it is undone. Refused turns among them were never sent.";
    found.push({ why: "Summarized by an earlier turn", rule, ranges: older });
  }
  const others = gone.filter((range) => !older.includes(range));
  if (others.length) {
    const rule = "Refused when posted, or nothing of them is left that can be sent.";
    found.push({ why: "Not part of later prompts", rule, ranges: others });
  }
  return found;
}

function rangeOf(text: string): [number, number] {
  const [first = 0, last = 0] = text.split("-").map(Number);
  return [first, last];
}

function signed(removed: number): string {
  return removed >= 0 ? `−${tokens(removed)}` : `+${tokens(-removed)}`;
}

function splitOnce(target: string): [string, string] {
  const at = target.indexOf(":");
  return at < 0 ? [target, ""] : [target.slice(0, at), target.slice(at + 1)];
}
