import { useMemo, useState } from "preact/hooks";
import type { Resource } from "../resource";
import { addressOf, goTo } from "../router";
import type { TimelineTurn } from "../types";
import { MarkLegend } from "./marks";
import { Plot, type Zoom } from "./plot";
import { countedRegions, REGION_NAMES, STACK, Swatch } from "./regions";
import { TimelineTable } from "./table";
import { TurnDetail } from "./turn-detail";

const SMALL_SHARE = 0.25;

interface Props {
  sessionId: string;
  turnId: string | null;
  otherTurnId: string | null;
  timeline: Resource<TimelineTurn[]>;
  hasEarlier: boolean;
  onEarlier: () => void;
}

export function WindowTab({ sessionId, turnId, otherTurnId, timeline, hasEarlier, onEarlier }: Props) {
  const turns = timeline.value ?? [];
  const [asked, setAsked] = useState<Zoom | null>(null);
  const zoom = asked ?? (isSmall(turns) ? "used" : "window");
  const chosen = turns.find((turn) => turn.turn_id === turnId) ?? turns.findLast((turn) => turn.window !== null);
  const inUse = useMemo(
    () => STACK.filter((region) => turns.some((turn) => turn.window && (countedRegions(turn.window)[region] ?? 0) > 0)),
    [turns],
  );
  if (timeline.problem) {
    return (
      <p class="notice bad" role="alert">
        {timeline.problem}
      </p>
    );
  }
  if (turns.length === 0) {
    return timeline.loading ? (
      <p class="quiet">Reading the turns…</p>
    ) : (
      <div class="empty">
        <p>This session has no messages yet.</p>
        <p>
          <a href={addressOf(sessionId, "chat")}>Send a message</a> <span class="quiet">and see its window here.</span>
        </p>
      </div>
    );
  }
  return (
    <>
      <section class="card" aria-labelledby="over-turns">
        <div class="plot-head">
          <h2 id="over-turns">The window, turn by turn</h2>
          {hasEarlier && (
            <button type="button" onClick={onEarlier}>
              Earlier turns
            </button>
          )}
          <fieldset class="choice">
            <legend class="unseen">Scale</legend>
            {(["window", "used"] as const).map((each) => (
              <label key={each}>
                <input type="radio" name="zoom" checked={zoom === each} onChange={() => setAsked(each)} />
                <span>{each === "window" ? "whole budget" : "what is used"}</span>
              </label>
            ))}
          </fieldset>
        </div>
        <Plot
          turns={turns}
          selected={chosen?.turn_id ?? null}
          zoom={zoom}
          onSelect={(id) => goTo(addressOf(sessionId, "window", id))}
        />
        <ul class="legend">
          {inUse.map((region) => (
            <li key={region}>
              <Swatch region={region} />
              {REGION_NAMES[region]}
            </li>
          ))}
        </ul>
        <MarkLegend turns={turns} />
        <p class="small quiet">
          Tokens counted against the input budget. Framing and tools count where they exceed their own reserve.
        </p>
        <TimelineTable sessionId={sessionId} turns={turns} />
      </section>
      {chosen && (
        <TurnDetail key={chosen.turn_id} sessionId={sessionId} turn={chosen} turns={turns} otherTurnId={otherTurnId} />
      )}
    </>
  );
}

/** A young session would be a thin line at the bottom of its budget. */
function isSmall(turns: TimelineTurn[]): boolean {
  const shares = turns.flatMap((turn) =>
    turn.window ? [turn.window.estimated_input_tokens_after_prune / Math.max(1, turn.window.input_budget)] : [],
  );
  return shares.length > 0 && Math.max(...shares) < SMALL_SHARE;
}
