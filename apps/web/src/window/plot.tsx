// The window over the turns: a column a turn, stacked by region, against the thresholds of that turn.
import { useEffect, useRef, useState } from "preact/hooks";
import { shortTokens, tokens } from "../format";
import type { TimelineTurn } from "../types";
import { MARKS, marksOf, sentenceOf } from "./marks";
import { countedRegions, STACK } from "./regions";

const LEFT = 58;
const RIGHT = 100;
const RIGHT_OF_MANY = 10;
const TOP = 14;
const HEIGHT = 260;
const AXIS = 22;
const MARK_ROW = 17;
const NARROWEST = 9;
const WIDEST = 44;

export type Zoom = "window" | "used";

interface Scale {
  top: number;
  step: number;
  width: number;
  right: number;
  scrolls: boolean;
  x: (at: number) => number;
  y: (value: number) => number;
}

interface PlotProps {
  turns: TimelineTurn[];
  selected: string | null;
  zoom: Zoom;
  onSelect: (turnId: string) => void;
}

export function Plot({ turns, selected, zoom, onSelect }: PlotProps) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const scale = scaleOf(turns, zoom, width);
  const rows = Math.max(0, ...turns.map((turn) => marksOf(turn).length));
  const height = TOP + HEIGHT + AXIS + rows * MARK_ROW + 4;
  const focusable = turns.some((turn) => turn.turn_id === selected) ? selected : turns.at(-1)?.turn_id;

  // The newest turns are what one comes for; with more than fit, they are at the right end.
  useEffect(() => {
    if (frame.current) frame.current.scrollLeft = frame.current.scrollWidth;
  }, [turns.length, width]);

  function move(event: KeyboardEvent, at: number) {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: turns.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const turn = turns[at];
      if (turn) onSelect(turn.turn_id);
    } else if (to !== undefined && turns[to]) {
      event.preventDefault();
      frame.current?.querySelectorAll<SVGGElement>("[role=option]")[to]?.focus();
    }
  }

  return (
    <>
      <div class="plot" ref={frame}>
        {width > 0 && (
          <svg width={scale.width} height={height}>
            <title>Tokens of every turn by region; a table of the same follows</title>
            <g aria-hidden="true">
              <Grid scale={scale} />
            </g>
            <g role="listbox" aria-label="Turns" aria-orientation="horizontal">
              {turns.map((turn, at) => (
                <g
                  key={turn.turn_id}
                  role="option"
                  class={turn.turn_id === selected ? "column chosen" : "column"}
                  aria-selected={turn.turn_id === selected}
                  aria-label={labelOf(turn)}
                  tabindex={turn.turn_id === focusable ? 0 : -1}
                  onClick={() => onSelect(turn.turn_id)}
                  onKeyDown={(event) => move(event, at)}
                >
                  <Column turn={turn} at={at} scale={scale} height={height} />
                </g>
              ))}
            </g>
            <g aria-hidden="true" class="over">
              <Thresholds turns={turns} scale={scale} />
              <TurnNumbers turns={turns} scale={scale} />
              <Marks turns={turns} scale={scale} />
            </g>
          </svg>
        )}
      </div>
      {scale.scrolls && <ThresholdLegend turn={turns.findLast((turn) => turn.window !== null)} />}
    </>
  );
}

/** The thresholds of the newest turn, by name and value. */
function ThresholdLegend({ turn }: { turn: TimelineTurn | undefined }) {
  return (
    <ul class="legend">
      {LINES.map((line) => {
        const value = turn ? line.of(turn) : null;
        return value === null ? null : (
          <li key={line.name}>
            <svg class={`line-key threshold ${line.name}`} viewBox="0 0 24 8" aria-hidden="true">
              <path d="M0 4H24" />
            </svg>
            {line.label} <span class="number quiet">{tokens(value)}</span>
          </li>
        );
      })}
    </ul>
  );
}

function Column({ turn, at, scale, height }: { turn: TimelineTurn; at: number; scale: Scale; height: number }) {
  const x = scale.x(at);
  const gap = scale.step > 14 ? 3 : 1;
  const parts = turn.window ? countedRegions(turn.window) : {};
  let below = 0;
  const bars = STACK.flatMap((region) => {
    const part = parts[region] ?? 0;
    if (part <= 0) return [];
    const bottom = scale.y(below);
    below += part;
    const top = scale.y(below);
    return bottom - top > 0 ? [{ region, y: top, height: bottom - top }] : [];
  });
  const cut = below > scale.top;
  return (
    <>
      <rect class="hit" x={x} y={0} width={scale.step} height={height} />
      {bars.map((bar) => (
        <rect
          key={bar.region}
          class={`bar ${bar.region}`}
          x={x + gap / 2}
          width={scale.step - gap}
          y={bar.y}
          height={bar.height}
        />
      ))}
      {cut && (
        <path class="torn" d={`M${x} ${TOP + 5}l${scale.step / 4} -4 ${scale.step / 2} 8 ${scale.step / 4} -4`} />
      )}
    </>
  );
}

function Grid({ scale }: { scale: Scale }) {
  return (
    <>
      {ticksOf(scale.top).map((tick) => (
        <g key={tick}>
          <line class="grid" x1={LEFT} x2={scale.width - scale.right} y1={scale.y(tick)} y2={scale.y(tick)} />
          <text class="tick" x={LEFT - 8} y={scale.y(tick) + 4}>
            {shortTokens(tick)}
          </text>
        </g>
      ))}
    </>
  );
}

const LINES = [
  { name: "budget", label: "budget", of: (turn: TimelineTurn) => turn.window?.input_budget ?? null },
  { name: "prune", label: "prune", of: (turn: TimelineTurn) => turn.window?.prune_trigger_tokens ?? null },
  { name: "summary", label: "summary", of: (turn: TimelineTurn) => turn.window?.summary_trigger_tokens ?? null },
] as const;

/** Each threshold as a line that steps where another model or policy moved it; its name and value at the end. */
function Thresholds({ turns, scale }: { turns: TimelineTurn[]; scale: Scale }) {
  let above = Number.NEGATIVE_INFINITY;
  return (
    <>
      {LINES.map((line) => {
        let path = "";
        let last: number | null = null;
        turns.forEach((turn, at) => {
          const value = line.of(turn);
          if (value === null || value > scale.top) return;
          const x = scale.x(at);
          path += `${last === null || path === "" ? "M" : "L"}${x} ${scale.y(value)}H${x + scale.step}`;
          last = value;
        });
        if (last === null) return null;
        // Names do not stand on each other, however near their lines are.
        const y = Math.max(scale.y(last) + 4, above + 15);
        above = y;
        return (
          <g key={line.name} class={`threshold ${line.name}`}>
            <path d={path} />
            {!scale.scrolls && (
              <text x={scale.x(turns.length) + 6} y={y}>
                {line.label} {tokens(last)}
              </text>
            )}
          </g>
        );
      })}
    </>
  );
}

function TurnNumbers({ turns, scale }: { turns: TimelineTurn[]; scale: Scale }) {
  const every = [1, 2, 5, 10, 20, 50, 100].find((step) => step * scale.step >= 26) ?? 200;
  return (
    <>
      {turns.map((turn, at) =>
        turn.seq % every === 0 || (turns.length <= 3 && every === 1) ? (
          <text key={turn.turn_id} class="turn-number" x={scale.x(at) + scale.step / 2} y={TOP + HEIGHT + 15}>
            {turn.seq}
          </text>
        ) : null,
      )}
    </>
  );
}

/** Below the axis, each under its turn. What they say is in the turns' names and in the table. */
function Marks({ turns, scale }: { turns: TimelineTurn[]; scale: Scale }) {
  return (
    <>
      {turns.flatMap((turn, at) =>
        marksOf(turn).map((kind, row) => {
          const x = scale.x(at) + scale.step / 2;
          const y = TOP + HEIGHT + AXIS + row * MARK_ROW + 8;
          return (
            <g key={`${turn.turn_id} ${kind}`} class={`mark ${kind}`}>
              <circle cx={x} cy={y} r={Math.min(7, scale.step / 2)} />
              {scale.step >= 12 && (
                <text x={x} y={y + 3.6}>
                  {MARKS[kind].letter}
                </text>
              )}
            </g>
          );
        }),
      )}
    </>
  );
}

function labelOf(turn: TimelineTurn): string {
  const window = turn.window;
  const size = window
    ? `${tokens(window.estimated_input_tokens_after_prune)} of ${tokens(window.input_budget)} tokens`
    : "no prompt";
  return [`Turn ${turn.seq}`, turn.status.replace("_", " "), size, ...turn.events.map(sentenceOf)].join(", ");
}

function scaleOf(turns: TimelineTurn[], zoom: Zoom, available: number): Scale {
  const windows = turns.flatMap((turn) => (turn.window ? [turn.window] : []));
  const budget = Math.max(1, ...windows.map((window) => window.input_budget));
  const used = Math.max(1, ...windows.map((window) => window.estimated_input_tokens_after_prune));
  const top = zoom === "used" ? used * 1.1 : Math.min(Math.max(used, budget * 1.06), budget * 1.3);
  // Where the plot scrolls, names at its end would be out of sight: they stand below it.
  const scrolls = LEFT + RIGHT + NARROWEST * turns.length > available;
  const right = scrolls ? RIGHT_OF_MANY : RIGHT;
  const inner = Math.max(0, available - LEFT - right);
  const step = Math.min(WIDEST, Math.max(NARROWEST, inner / Math.max(1, turns.length)));
  const width = Math.max(available, LEFT + right + step * turns.length);
  return {
    top,
    step,
    width,
    right,
    scrolls,
    x: (at) => LEFT + at * step,
    y: (value) => TOP + HEIGHT - (Math.min(value, top) / top) * HEIGHT,
  };
}

function ticksOf(top: number): number[] {
  const rough = top / 5;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * magnitude).find((size) => size >= rough) ?? magnitude * 10;
  const ticks: number[] = [];
  for (let tick = 0; tick <= top; tick += Math.max(1, step)) ticks.push(Math.round(tick));
  return ticks;
}

export function useWidth(frame: { current: HTMLDivElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, [frame]);
  return width;
}
