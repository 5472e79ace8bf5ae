import { useState } from "preact/hooks";
import { call } from "../api";
import { dollars, percent, tokens } from "../format";
import { sentenceOf as sentenceOfProblem, useResource } from "../resource";
import { addressOf, goTo } from "../router";
import type { Audit, Prompt, Session, TimelineTurn } from "../types";
import { PromptDiff } from "./diff";
import { LeftOut } from "./left-out";
import { sentenceOf } from "./marks";
import { PromptBlocks } from "./prompt";
import { RegionLegend } from "./regions";

const NOTHING = Promise.resolve(null);

interface Props {
  sessionId: string;
  turn: TimelineTurn;
  turns: TimelineTurn[];
  otherTurnId: string | null;
}

/** Everything about one turn's prompt: what was sent, what was not, and how it differs from another turn's. */
export function TurnDetail({ sessionId, turn, turns, otherTurnId }: Props) {
  const [round, setRound] = useState<number | null>(null);
  const last = turn.rounds;
  const shownRound = round === null || round > last ? last : round;
  const audit = useResource<Audit | null>(
    (signal) =>
      turn.window ? call(path("audit"), { query: { round: shownRound, expand: "actions" }, signal }) : NOTHING,
    [turn.turn_id, shownRound, turn.status],
  );
  const sent = audit.value?.turn_id === turn.turn_id && audit.value.prompt_sha256;
  const prompt = useResource<Prompt | null>(
    (signal) => (sent ? call(path("prompt"), { query: { round: shownRound }, signal }) : NOTHING),
    [sent],
  );
  const other = turns.find((each) => each.turn_id === otherTurnId) ?? null;

  function path(what: string): string {
    return `sessions/${sessionId}/turns/${turn.turn_id}/${what}`;
  }

  if (!audit.value || audit.value.turn_id !== turn.turn_id) {
    const nothing = audit.loading ? "Reading the turn…" : "This turn has no prompt yet.";
    return <p class="quiet">{audit.problem ?? nothing}</p>;
  }
  return (
    <section class="turn-detail" aria-labelledby="turn-title">
      <header class="turn-head">
        <h2 id="turn-title">
          Turn {turn.seq} <span class="quiet">{turn.status.replace("_", " ")}</span>
        </h2>
        {last > 1 && (
          <label class="inline">
            Call
            <select value={shownRound} onChange={(event) => setRound(Number(event.currentTarget.value))}>
              {Array.from({ length: last }, (_, at) => at + 1).map((number) => (
                <option key={number} value={number}>
                  {number} of {last}
                </option>
              ))}
            </select>
          </label>
        )}
        {turn.status !== "running" && <ForkHere sessionId={sessionId} turn={turn} />}
        <label class="inline">
          Compare with
          <select
            value={other?.turn_id ?? ""}
            onChange={(event) => goTo(addressOf(sessionId, "window", turn.turn_id, event.currentTarget.value))}
          >
            <option value="">no other turn</option>
            {turns
              .filter((each) => each.turn_id !== turn.turn_id && each.window?.prompt_sha256)
              .map((each) => (
                <option key={each.turn_id} value={each.turn_id}>
                  turn {each.seq}
                </option>
              ))}
          </select>
        </label>
      </header>
      <Figures audit={audit.value} turn={turn} />
      <RegionLegend regions={audit.value.regions} />
      <div class="sent-and-left">
        <section aria-labelledby="sent">
          <h3 id="sent">{other ? `From turn ${other.seq} to turn ${turn.seq}` : "Sent, in this order"}</h3>
          {!prompt.value && <p class="quiet">{prompt.loading ? "Reading…" : "Nothing was sent to the model."}</p>}
          {prompt.value && !other && <PromptBlocks prompt={prompt.value} turns={turns} />}
          {prompt.value && other && <Compared sessionId={sessionId} was={other} now={prompt.value} turns={turns} />}
          {prompt.value && (
            <p class="small quiet hash">
              SHA-256 <code>{audit.value.prompt_sha256}</code>
            </p>
          )}
        </section>
        <LeftOut sessionId={sessionId} audit={audit.value} prompt={prompt.value} turn={turn} turns={turns} />
      </div>
    </section>
  );
}

function ForkHere({ sessionId, turn }: { sessionId: string; turn: TimelineTurn }) {
  const [problem, setProblem] = useState<string | null>(null);

  async function fork() {
    setProblem(null);
    try {
      const made = await call<Session>(`sessions/${sessionId}/fork`, { body: { through_turn_id: turn.turn_id } });
      goTo(addressOf(made.id, "chat"));
    } catch (error) {
      setProblem(sentenceOfProblem(error));
    }
  }

  return (
    <>
      {problem && <span role="alert">{problem}</span>}
      <button type="button" onClick={() => void fork()}>
        Fork here
      </button>
    </>
  );
}

function Compared(props: { sessionId: string; was: TimelineTurn; now: Prompt; turns: TimelineTurn[] }) {
  const { sessionId, was, now, turns } = props;
  const before = useResource<Prompt>(
    (signal) => call(`sessions/${sessionId}/turns/${was.turn_id}/prompt`, { signal }),
    [sessionId, was.turn_id],
  );
  if (before.problem) return <p class="notice bad">{before.problem}</p>;
  return before.value ? <PromptDiff was={before.value} now={now} turns={turns} /> : <p class="quiet">Reading…</p>;
}

function Figures({ audit, turn }: { audit: Audit; turn: TimelineTurn }) {
  const counted = audit.estimated_input_tokens_after_prune;
  const figures: [string, string, string][] = [
    [
      "Counted against the budget",
      tokens(counted),
      `${percent(counted, audit.input_budget)} of ${tokens(audit.input_budget)}`,
    ],
    ["Whole request, estimated", tokens(audit.estimated_wire_tokens), audit.estimator],
    [
      "Counted by the provider",
      audit.actual_prompt_tokens === null ? "–" : tokens(audit.actual_prompt_tokens),
      audit.calibration_ratio === 1 ? "no correction" : `correction × ${audit.calibration_ratio.toFixed(3)}`,
    ],
    [
      "Window",
      tokens(audit.model_context_limit),
      `${audit.model_alias}, ${audit.context_limit_source.replace("_", " ")}`,
    ],
    [
      "Cost",
      dollars(turn.cost_usd),
      turn.completion_tokens === null ? "" : `${tokens(turn.completion_tokens)} tokens out`,
    ],
  ];
  return (
    <>
      <dl class="figures-row">
        {figures.map(([name, value, note]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <span class="value">{value}</span> <span class="small quiet">{note}</span>
            </dd>
          </div>
        ))}
      </dl>
      {turn.events.length > 0 && <p class="what-happened">{turn.events.map(sentenceOf).join("; ")}.</p>}
    </>
  );
}
