// What a prompt did not hold, why, and by which rule: from the audit's trim log, and from what had left before.
import { call, type Page } from "../api";
import { cut, plural, tokens } from "../format";
import { useResource } from "../resource";
import { addressOf } from "../router";
import { wholeText } from "../text";
import type { Prompt, StoredMessage, TimelineTurn, TrimAction } from "../types";
import { type Decided, ruleOf } from "./rules";

const MOST_TARGETS = 100;
const MOST_OPEN = 10;

interface Props {
  sessionId: string;
  audit: Decided;
  prompt: Prompt | null;
  turn: Pick<TimelineTurn, "seq" | "window">;
  turns: TimelineTurn[];
  /** Which one it is, where two stand on a page. */
  of?: string;
}

export function LeftOut({ sessionId, audit, prompt, turn, turns, of }: Props) {
  const log = audit.context_trim_log;
  const ids = messageIdsOf(audit);
  const cited = useResource<Page<StoredMessage>>(
    (signal) =>
      ids.length
        ? call(`sessions/${sessionId}/messages`, { query: { ids: ids.join(",") }, signal })
        : Promise.resolve({ items: [], next_cursor: null }),
    [sessionId, ids.join(",")],
  );
  const messages = new Map((cited.value?.items ?? []).map((message) => [message.id, message]));
  const groups = grouped(log.actions);
  const before = goneBefore(prompt, audit, turn, turns);
  const recalled = log.recalled ?? [];
  return (
    <section aria-label={of ? `Left out: ${of}` : "Left out"}>
      <h3>Left out</h3>
      {groups.length === 0 && before.length === 0 && (
        <p class="quiet">Nothing: this prompt has all earlier messages.</p>
      )}
      {groups.map((group) => (
        <RuleGroup key={group.key} group={group} audit={audit} turn={turn}>
          {group.actions.slice(0, MOST_TARGETS).map((action) => (
            <li key={`${action.kind} ${action.target}`}>
              <Target action={action} sessionId={sessionId} messages={messages} turns={turns} />
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
            {rangesOf(group.turns).map((range, at) => (
              <span key={range.text}>
                {at > 0 && ", "}
                <a href={addressOf(sessionId, "window", range.turnId)}>{range.text}</a>
              </span>
            ))}
          </p>
        </div>
      ))}
      {recalled.length > 0 && (
        <>
          <h3>Recalled</h3>
          <p class="small quiet">
            Older messages that match the user's message, in the free tokens below the summary trigger.
          </p>
          <details open={recalled.length <= MOST_OPEN}>
            <summary>
              {plural(recalled.length, "message")}, {tokens(recalled.reduce((sum, row) => sum + row.tokens, 0))} tokens
            </summary>
            <ul class="targets">
              {recalled.map((row) => (
                <li key={row.message_id}>
                  <span>
                    {messageName(messages.get(row.message_id))} <span class="quiet">score {row.score.toFixed(2)}</span>
                  </span>
                  <span class="number quiet">+{tokens(row.tokens)}</span>
                </li>
              ))}
            </ul>
          </details>
        </>
      )}
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

function Target(props: {
  action: TrimAction;
  sessionId: string;
  messages: Map<string, StoredMessage>;
  turns: TimelineTurn[];
}) {
  const { action, sessionId, messages, turns } = props;
  const [kind = "", id = ""] = splitOnce(action.target);
  if (kind === "turn") {
    const turn = turns.find((each) => each.turn_id === id);
    return (
      <span>
        <a href={addressOf(sessionId, "window", id)}>{turn ? `Turn ${turn.seq}` : "An earlier turn"}</a>{" "}
        <span class="quiet">{turn && cut(turn.user_input, 70)}</span>
      </span>
    );
  }
  if (kind === "summary") {
    return (
      <span>
        <a href={addressOf(sessionId, "memory")}>The summary</a> <span class="quiet">in their place</span>
      </span>
    );
  }
  if (kind === "messages" || kind === "turns") {
    return (
      <span>
        {plural(action.count ?? 1, kind === "turns" ? "turn" : "message")}{" "}
        <span class="quiet">
          in {kind} {id}
        </span>
      </span>
    );
  }
  if (kind === "message") return <span>{messageName(messages.get(id))}</span>;
  return (
    <span>
      {kind} {id}
    </span>
  );
}

function messageName(message: StoredMessage | undefined) {
  if (!message) return "A message";
  return (
    <>
      Turn {message.turn_seq}, {message.role}{" "}
      <span class="quiet">{cut(wholeText({ ...message, tool_calls: message.tool_calls ?? [] }), 70)}</span>
    </>
  );
}

function messageIdsOf(audit: Decided): string[] {
  const log = audit.context_trim_log;
  const named = log.actions.map((action) => splitOnce(action.target)).filter(([kind]) => kind === "message");
  const ids = [...named.map(([, id]) => id ?? ""), ...(log.recalled ?? []).map((row) => row.message_id)];
  return [...new Set(ids.filter(Boolean))].slice(0, MOST_TARGETS);
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

interface Gone {
  why: string;
  rule: string;
  turns: TimelineTurn[];
}

/** Earlier turns of which this prompt holds nothing, and which no action of this turn took out. */
function goneBefore(prompt: Prompt | null, audit: Decided, turn: Props["turn"], turns: TimelineTurn[]): Gone[] {
  if (!prompt) return [];
  const held = new Set(prompt.layout.map((row) => row.turn_id));
  const targets = audit.context_trim_log.actions.map((action) => splitOnce(action.target));
  const named = new Set(targets.filter(([kind]) => kind === "turn").map(([, id]) => id));
  const ranges = targets.filter(([kind]) => kind === "turns").map(([, range]) => range.split("-").map(Number));
  const isNamed = (each: TimelineTurn) =>
    named.has(each.turn_id) || ranges.some(([first = 0, last = 0]) => first <= each.seq && each.seq <= last);
  const gone = turns.filter((each) => each.seq < turn.seq && !held.has(each.turn_id) && !isNamed(each));
  const summarized = prompt.layout.some((row) => row.region === "summary");
  const refused = gone.filter((each) => each.status === "rejected");
  const others = gone.filter((each) => each.status !== "rejected");
  const found: Gone[] = [];
  if (others.length && summarized) {
    const rule = "An earlier turn summarized them. The summary replaces them until it is undone.";
    found.push({ why: "Summarized by an earlier turn", rule, turns: others });
  } else if (others.length) {
    const rule = "They have nothing to send, or actions on single messages dropped all of it.";
    found.push({ why: "No messages left", rule, turns: others });
  }
  if (refused.length) {
    const rule = "A refused turn was not sent, and is not part of later prompts.";
    found.push({ why: "Refused when posted", rule, turns: refused });
  }
  return found;
}

function rangesOf(turns: TimelineTurn[]): { text: string; turnId: string }[] {
  const ranges: { first: number; last: number; turnId: string }[] = [];
  for (const turn of turns) {
    const range = ranges.at(-1);
    if (range && range.last === turn.seq - 1) range.last = turn.seq;
    else ranges.push({ first: turn.seq, last: turn.seq, turnId: turn.turn_id });
  }
  return ranges.map(({ first, last, turnId }) => ({
    text: first === last ? `Turn ${first}` : `Turns ${first}–${last}`,
    turnId,
  }));
}

function signed(removed: number): string {
  return removed >= 0 ? `−${tokens(removed)}` : `+${tokens(-removed)}`;
}

function splitOnce(target: string): [string, string] {
  const at = target.indexOf(":");
  return at < 0 ? [target, ""] : [target.slice(0, at), target.slice(at + 1)];
}
