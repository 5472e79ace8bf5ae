import { useState } from "preact/hooks";
import { call, type Page } from "../api";
import { dateTime, dollars, elapsed, percent, tokens } from "../format";
import { sentenceOf as sentenceOfProblem, useResource } from "../resource";
import { addressOf, goTo } from "../router";
import type { Audit, Prompt, Session, TimelineRange, TimelineTurn, Turn } from "../types";
import { Failure } from "../ui/failure";
import { useKeptFocus } from "../ui/kept-focus";
import { useMaking } from "../ui/making";
import { stateWord } from "../ui/state-badge";
import { TurnNumber } from "../ui/turn-number";
import { PromptDiff } from "./diff";
import { LeftOut } from "./left-out";
import { sentenceOf } from "./marks";
import { PromptBlocks } from "./prompt";
import { RegionSums } from "./sums";

const NOTHING = Promise.resolve(null);

interface Props {
  sessionId: string;
  turn: TimelineTurn;
  /** How many turns the session has. */
  total: number;
  /** The turn to compare with. */
  other: string | null;
}

/** Everything about one turn's prompt: what was sent, what was not, and how it differs from another turn's. */
export function TurnDetail({ sessionId, turn, total, other }: Props) {
  const [round, setRound] = useState<number | null>(null);
  const last = turn.rounds;
  const shownRound = round === null || round > last ? last : round;
  const audit = useResource<Audit | null>(
    (signal) => (turn.window ? call(path("audit"), { query: { round: shownRound }, signal }) : NOTHING),
    [turn.turn_id, shownRound, turn.status],
  );
  // Every call but the last was made; the last one's prompt has a hash where it was sent.
  const sent = turn.window !== null && (shownRound < last || turn.window.prompt_sha256 !== null);
  const prompt = useResource<Prompt | null>(
    (signal) => (sent ? call(path("prompt"), { query: { round: shownRound }, signal }) : NOTHING),
    [turn.turn_id, shownRound, sent],
  );

  const title = useKeptFocus<HTMLHeadingElement>(audit.value === null);

  function path(what: string): string {
    return `sessions/${sessionId}/turns/${turn.turn_id}/${what}`;
  }

  if (!audit.value || audit.value.turn_id !== turn.turn_id) {
    if (audit.problem) return <Failure why={audit.problem} onRetry={audit.reload} />;
    return (
      <div class="notice">
        <p>{audit.loading ? "Reading the turn…" : withoutPrompt(turn)}</p>
        {turn.status === "failed" && <WhyFailed sessionId={sessionId} turnId={turn.turn_id} />}
      </div>
    );
  }
  return (
    <section class="turn-detail" aria-labelledby="turn-title">
      <header class="turn-head">
        <h2 id="turn-title" ref={title} tabIndex={-1}>
          Turn {turn.seq} <span class="quiet">{stateWord(turn.status)}</span>
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
        <Neighbours sessionId={sessionId} seq={turn.seq} total={total} />
        {turn.status !== "running" && <ForkHere sessionId={sessionId} turn={turn} />}
        <CompareWith sessionId={sessionId} turn={turn} total={total} other={other} />
      </header>
      <Figures audit={audit.value} turn={turn} />
      {turn.status === "failed" && <WhyFailed sessionId={sessionId} turnId={turn.turn_id} />}
      <div class="sent-and-left" onMouseOver={pairUp} onFocusIn={pairUp}>
        <RegionSums
          regions={audit.value.regions}
          counted={audit.value.estimated_input_tokens_after_prune}
          overheadReserve={audit.value.overhead_reserve}
        />
        <section class="sent" aria-labelledby="sent">
          <h3 id="sent">{other ? `From turn ${other} to turn ${turn.seq}` : "Sent, in this order"}</h3>
          <Failure why={prompt.problem} onRetry={prompt.reload} />
          {!sent && <p class="quiet">Nothing was sent to the model.</p>}
          {prompt.loading && !prompt.value && <p class="quiet">Reading…</p>}
          {prompt.value && !other && <PromptBlocks sessionId={sessionId} prompt={prompt.value} />}
          {prompt.value && other && <Compared sessionId={sessionId} was={other} now={prompt.value} />}
          {prompt.value && (
            <p class="small quiet hash">
              SHA-256 <code>{audit.value.prompt_sha256}</code>
            </p>
          )}
        </section>
        <LeftOut sessionId={sessionId} audit={audit.value} prompt={prompt.value} turn={turn} />
      </div>
    </section>
  );
}

function withoutPrompt({ seq, status }: TimelineTurn): string {
  if (status === "running") return `Turn ${seq} has no prompt yet.`;
  const isImported = status === "completed" || status === "awaiting_tools";
  return isImported
    ? `Turn ${seq} was imported: no prompt was made for it here.`
    : `Turn ${seq} ended before its prompt was made.`;
}

/** The problem that a failed turn ended with. */
function WhyFailed({ sessionId, turnId }: { sessionId: string; turnId: string }) {
  const turn = useResource<Turn>((signal) => call(`sessions/${sessionId}/turns/${turnId}`, { signal }), [turnId]);
  const error = turn.value?.error;
  if (!error) return <Failure why={turn.problem} onRetry={turn.reload} />;
  return (
    <p class="failed-why">
      {error.title}: {error.detail}
    </p>
  );
}

/** One turn back or on, also where the plot does not reach. */
function Neighbours({ sessionId, seq, total }: { sessionId: string; seq: number; total: number }) {
  return (
    <nav class="steps" aria-label="Turns before and after">
      {seq > 1 && (
        <a class="button" href={addressOf(sessionId, "window", seq - 1)}>
          ← Turn {seq - 1}
        </a>
      )}
      {seq < total && (
        <a class="button" href={addressOf(sessionId, "window", seq + 1)}>
          Turn {seq + 1} →
        </a>
      )}
    </nav>
  );
}

/** Marks a message wherever it stands on both sides. */
function pairUp(event: Event) {
  const own = (event.target as Element).closest<HTMLElement>("[data-message]")?.dataset.message;
  const both = event.currentTarget as HTMLElement;
  for (const each of both.querySelectorAll(".partner")) each.classList.remove("partner");
  if (!own) return;
  for (const each of both.querySelectorAll(`[data-message~="${own}"]`)) each.classList.add("partner");
}

function ForkHere({ sessionId, turn }: { sessionId: string; turn: TimelineTurn }) {
  const { busy, error, make } = useMaking();
  const fork = () =>
    make(async () => {
      const made = await call<Session>(`sessions/${sessionId}/fork`, { body: { through_turn_id: turn.turn_id } });
      return addressOf(made.id, "chat");
    });

  return (
    <>
      <button type="button" disabled={busy} onClick={() => void fork()}>
        Fork here
      </button>
      <Failure why={error ? sentenceOfProblem(error) : null} />
    </>
  );
}

/** The turn before it by default; any other by its number. */
function CompareWith({ sessionId, turn, total, other }: Props) {
  const compare = (seq: number | null) => goTo(addressOf(sessionId, "window", turn.seq, seq));
  if (other === null) {
    return turn.seq > 1 ? (
      <button type="button" onClick={() => compare(turn.seq - 1)}>
        Compare with the previous turn
      </button>
    ) : null;
  }
  return (
    <>
      <TurnNumber
        label="Compare with turn"
        value={other}
        least={1}
        most={total}
        onCommit={(typed) => compare(typed || null)}
      />
      <button type="button" onClick={() => compare(null)}>
        End comparison
      </button>
    </>
  );
}

function Compared({ sessionId, was, now }: { sessionId: string; was: string; now: Prompt }) {
  const before = useResource<Prompt | string>(
    async (signal) => {
      const query = { from_seq: was, through_seq: was };
      const { items } = await call<Page<TimelineRange>>(`sessions/${sessionId}/timeline/overview`, { query, signal });
      const other = items[0]?.peak;
      if (!other) return `There is no turn ${was}.`;
      if (!other.window?.prompt_sha256) return `Nothing was sent to a model for turn ${was}: another can be compared.`;
      return call<Prompt>(`sessions/${sessionId}/turns/${other.turn_id}/prompt`, { signal });
    },
    [sessionId, was],
  );
  if (before.problem) return <Failure why={before.problem} onRetry={before.reload} />;
  if (before.loading || before.value === null) return <p class="quiet">Reading…</p>;
  if (typeof before.value === "string") return <p class="quiet">{before.value}</p>;
  return <PromptDiff was={before.value} now={now} />;
}

function Figures({ audit, turn }: { audit: Audit; turn: TimelineTurn }) {
  const counted = audit.estimated_input_tokens_after_prune;
  const figures: { name: string; help: string; value: string; note: string }[] = [
    {
      name: "Counted against the budget",
      help: "What the thresholds are compared with: the request without what its overhead reserve covers",
      value: tokens(counted),
      note: `${percent(counted, audit.input_budget)} of ${tokens(audit.input_budget)}`,
    },
    {
      name: "Whole request, estimated",
      help: "All tokens that are sent, counted with this vocabulary",
      value: tokens(audit.estimated_wire_tokens),
      note: audit.estimator,
    },
    {
      name: "Counted by the provider",
      help: "Prompt tokens that the provider reported for this call; later estimates are corrected by them",
      value: audit.actual_prompt_tokens === null ? "–" : tokens(audit.actual_prompt_tokens),
      note: audit.calibration_ratio === 1 ? "no correction" : `correction × ${audit.calibration_ratio.toFixed(3)}`,
    },
    {
      name: "Window",
      help: "The context window of the model, and where its size is known from",
      value: tokens(audit.model_context_limit),
      note: `${audit.model_alias}, ${audit.context_limit_source.replace("_", " ")}`,
    },
    {
      name: "Answer",
      help: "Completion tokens of the turn, as the provider counted them",
      value: turn.completion_tokens === null ? "–" : tokens(turn.completion_tokens),
      note: turn.cost_usd === null ? "" : `the turn cost ${dollars(turn.cost_usd)}`,
    },
    {
      name: "Time",
      help: "From the message to the end of the answer",
      value: elapsed(turn.created_at, turn.completed_at),
      note: dateTime(turn.created_at),
    },
  ];
  return (
    <>
      <dl class="figures-row">
        {figures.map(({ name, help, value, note }) => (
          <div key={name}>
            <dt title={help}>{name}</dt>
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
