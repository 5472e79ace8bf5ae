import { useMemo, useRef, useState } from "preact/hooks";
import { useOverview, useTurn } from "../overview";
import { addressOf, goTo } from "../router";
import type { TimelineRange } from "../types";
import { Brush, BrushFields, type Selection, within } from "./brush";
import { MarkLegend } from "./marks";
import { columnsIn, Plot, useWidth, type Zoom } from "./plot";
import { countedRegions, REGION_HELP, REGION_NAMES, STACK, Swatch } from "./regions";
import { TimelineTable } from "./table";
import { TurnDetail } from "./turn-detail";
import { Failure } from "../ui/failure";

const SMALL_SHARE = 0.25;
const SHOWN_AT_FIRST = 120;
const POINTS_OF_THE_STRIP = 240;

interface Props {
  sessionId: string;
  turn: string | null;
  otherTurn: string | null;
  /** Null until it is known. */
  total: number | null;
  version: number;
}

export function WindowTab({ sessionId, turn, otherTurn, total, version }: Props) {
  const frame = useRef<HTMLElement>(null);
  const width = useWidth(frame);
  const chosen = useTurn(sessionId, turn ?? (total || null), version);
  const shown = chosen.value;
  const wanted = turn ?? String(total);
  // What is still shown is another turn than the chosen one: nothing can be done with it.
  const isOther = shown !== null && wanted !== String(shown.seq) && wanted !== shown.turn_id;
  return (
    <>
      <section class="card" ref={frame} aria-labelledby="over-turns">
        {total === null && <p class="quiet">Reading the turns…</p>}
        {total === 0 && (
          <div class="empty">
            <h2 id="over-turns">This session has no messages yet</h2>
            <p>
              <a href={addressOf(sessionId, "chat")}>Send a message</a>{" "}
              <span class="quiet">and see its window here.</span>
            </p>
          </div>
        )}
        {total !== null && total > 0 && width > 0 && (
          <OverTurns
            sessionId={sessionId}
            total={total}
            width={width}
            version={version}
            selected={shown?.seq ?? null}
            aimed={turn === null ? null : (shown?.seq ?? null)}
          />
        )}
      </section>
      <Failure why={chosen.problem} onRetry={chosen.reload} />
      {turn !== null && !chosen.loading && !chosen.problem && !shown && (
        <p class="notice">This session has no turn {turn}.</p>
      )}
      {shown && (
        <div inert={isOther} class={isOther ? "leaving" : undefined}>
          <TurnDetail
            key={shown.turn_id}
            sessionId={sessionId}
            turn={shown}
            total={total ?? shown.seq}
            other={otherTurn}
          />
        </div>
      )}
    </>
  );
}

interface OverTurnsProps {
  sessionId: string;
  total: number;
  width: number;
  version: number;
  selected: number | null;
  /** A turn that the address names: the plot shows it. */
  aimed: number | null;
}

function OverTurns({ sessionId, total, width, version, selected, aimed }: OverTurnsProps) {
  const [given, setGiven] = useState<{ selection: Selection; aimed: number | null } | null>(null);
  const [chosenZoom, setChosenZoom] = useState<Zoom | null>(null);
  const newest = within({ first: total - SHOWN_AT_FIRST + 1, last: total }, total);
  const own = given && given.aimed === aimed ? given.selection : null;
  const selection = own ?? around(aimed, given?.selection ?? newest, total);
  const setSelection = (to: Selection) => setGiven({ selection: to, aimed });
  const points = columnsIn(width);
  const plotted = useOverview(sessionId, selection.first, selection.last, points, version);
  const isWhole = selection.last - selection.first + 1 === total;
  const whole = useOverview(sessionId, 1, total > points / 2 || !isWhole ? total : 0, POINTS_OF_THE_STRIP, version);
  const ranges = plotted.value ?? [];
  const zoom = chosenZoom ?? (isSmall(ranges) ? "used" : "window");
  const inUse = useMemo(
    () =>
      STACK.filter((region) =>
        ranges.some(({ peak }) => peak.window && (countedRegions(peak.window)[region] ?? 0) > 0),
      ),
    [ranges],
  );
  const aggregated = ranges.some((range) => range.last_seq > range.first_seq);
  return (
    <>
      <div class="plot-head">
        <h2 id="over-turns">The window, turn by turn</h2>
        <fieldset class="choice">
          <legend class="unseen">Scale</legend>
          {(["window", "used"] as const).map((each) => (
            <label key={each}>
              <input type="radio" name="zoom" checked={zoom === each} onChange={() => setChosenZoom(each)} />
              <span>{each === "window" ? "whole budget" : "what is used"}</span>
            </label>
          ))}
        </fieldset>
      </div>
      <Failure why={plotted.problem} onRetry={plotted.reload} />
      {ranges.length === 0 && plotted.loading && <p class="quiet">Reading the turns…</p>}
      {ranges.length > 0 && (
        <Plot
          ranges={ranges}
          selected={selected}
          zoom={zoom}
          width={width}
          onSelect={(seq) => goTo(addressOf(sessionId, "window", seq))}
          onZoom={(first, last) => setSelection(within({ first, last }, total))}
        />
      )}
      {whole.value && whole.value.length > 0 && (
        <>
          <Brush ranges={whole.value} total={total} width={width} selection={selection} onSelect={setSelection} />
          <BrushFields selection={selection} total={total} onSelect={setSelection} />
        </>
      )}
      <ul class="legend">
        {inUse.map((region) => (
          <li key={region} title={REGION_HELP[region]}>
            <Swatch region={region} />
            {REGION_NAMES[region]}
          </li>
        ))}
      </ul>
      <MarkLegend ranges={ranges} />
      {ranges.length > 0 && ranges.every(({ peak }) => peak.window === null) && (
        <p>
          No prompt was made here for these turns. <a href={addressOf(sessionId, "chat")}>Send a message</a> to make
          one, or see what it would be under <a href={addressOf(sessionId, "what-if")}>What if</a>.
        </p>
      )}
      <p class="small quiet">
        {aggregated && "Each column is a run of turns, drawn as its largest one; select it to zoom in. "}
        Tokens counted against the input budget. Framing and tools count where they exceed their own reserve.
      </p>
      <TimelineTable sessionId={sessionId} ranges={ranges} />
    </>
  );
}

/** The selection, moved so that it shows a turn. */
function around(seq: number | null, { first, last }: Selection, total: number): Selection {
  if (seq === null || (first <= seq && seq <= last)) return within({ first, last }, total);
  const half = Math.floor((last - first) / 2);
  return within({ first: seq - half, last: seq - half + last - first }, total);
}

/** A young session would be a thin line at the bottom of its budget. */
function isSmall(ranges: TimelineRange[]): boolean {
  const shares = ranges.flatMap(({ peak: { window } }) =>
    window ? [window.estimated_input_tokens_after_prune / Math.max(1, window.input_budget)] : [],
  );
  return shares.length > 0 && Math.max(...shares) < SMALL_SHARE;
}
