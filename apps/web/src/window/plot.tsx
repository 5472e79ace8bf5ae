// The window over the turns: a column a turn or a run of turns, stacked by region, against the thresholds.
import { useEffect, useRef, useState } from "preact/hooks";
import { plural, shortTokens, tokens } from "../format";
import type { TimelineRange, TimelineTurn } from "../types";
import { stateWord } from "../ui/state-badge";
import { happenedIn, kindsIn, MARKS } from "./marks";
import { countedRegions, STACK } from "./regions";

const LEFT = 58;
const RIGHT = 100;
const RIGHT_WHERE_NARROW = 10;
const NARROW = 640;
const TOP = 14;
const HEIGHT = 260;
const AXIS = 24;
const MARK_ROW = 18;
const NARROWEST = 8;
const WIDEST = 44;
const APART = 44;
export const NUMBER_HALF_WIDTH = 22;
const ROUND = Array.from({ length: 36 }, (_, at) => ([1, 2, 5][at % 3] ?? 1) * 10 ** Math.floor(at / 3));

export type Zoom = "window" | "used";

interface Scale {
  top: number;
  step: number;
  width: number;
  right: number;
  first: number;
  each: number;
  x: (at: number) => number;
  y: (value: number) => number;
}

/** How many columns fit. */
export function columnsIn(width: number): number {
  return Math.max(10, Math.min(200, Math.floor((width - LEFT - rightOf(width)) / NARROWEST)));
}

interface PlotProps {
  ranges: TimelineRange[];
  selected: number | null;
  zoom: Zoom;
  width: number;
  onSelect: (seq: number) => void;
  onZoom: (first: number, last: number) => void;
}

export function Plot({ ranges, selected, zoom, width, onSelect, onZoom }: PlotProps) {
  const columns = useRef<SVGGElement>(null);
  const scale = scaleOf(ranges, zoom, width);
  const height = TOP + HEIGHT + AXIS + kindsIn(ranges).length * MARK_ROW + 4;
  const chosen = ranges.findIndex((range) => isIn(range, selected));
  const focusable = chosen < 0 ? ranges.length - 1 : chosen;

  function open(range: TimelineRange) {
    if (range.first_seq === range.last_seq) onSelect(range.first_seq);
    else onZoom(range.first_seq, range.last_seq);
  }

  function move(event: KeyboardEvent, at: number) {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: ranges.length - 1 }[event.key];
    const range = ranges[at];
    if (range && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      open(range);
    } else if (to !== undefined && ranges[to]) {
      event.preventDefault();
      columns.current?.querySelectorAll<SVGGElement>("[role=option]")[to]?.focus();
    }
  }

  return (
    <>
      <div class="plot">
        <svg width={width} height={height}>
          <title>Tokens of every turn by region; a table of the same follows</title>
          <g aria-hidden="true">
            <Grid scale={scale} />
          </g>
          <g ref={columns} role="listbox" aria-label="Turns" aria-orientation="horizontal">
            {ranges.map((range, at) => (
              <g
                key={range.first_seq}
                role="option"
                class={at === chosen ? "column chosen" : "column"}
                aria-selected={at === chosen}
                aria-label={labelOf(range)}
                tabindex={at === focusable ? 0 : -1}
                onClick={() => open(range)}
                onKeyDown={(event) => move(event, at)}
              >
                <title>{labelOf(range)}</title>
                <Column turn={range.peak} at={at} scale={scale} height={height} />
              </g>
            ))}
          </g>
          <g aria-hidden="true" class="over">
            <Thresholds ranges={ranges} scale={scale} />
            <TurnNumbers ranges={ranges} scale={scale} />
            <Marks ranges={ranges} scale={scale} />
          </g>
        </svg>
      </div>
      {width < NARROW && <ThresholdLegend turn={ranges.findLast((range) => range.peak.window !== null)?.peak} />}
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
function Thresholds({ ranges, scale }: { ranges: TimelineRange[]; scale: Scale }) {
  let above = Number.NEGATIVE_INFINITY;
  return (
    <>
      {LINES.map((line) => {
        let path = "";
        let last: number | null = null;
        ranges.forEach(({ peak }, at) => {
          const value = line.of(peak);
          if (value === null || value > scale.top) return;
          const x = scale.x(at);
          path += `${path === "" ? "M" : "L"}${x} ${scale.y(value)}H${x + scale.step}`;
          last = value;
        });
        if (last === null) return null;
        // Names do not stand on each other, however near their lines are.
        const y = Math.max(scale.y(last) + 4, above + 15);
        above = y;
        return (
          <g key={line.name} class={`threshold ${line.name}`}>
            <path d={path} />
            {scale.right === RIGHT && (
              <text x={scale.x(ranges.length) + 6} y={y}>
                {line.label} {tokens(last)}
              </text>
            )}
          </g>
        );
      })}
    </>
  );
}

/** Round numbers of turns, as many as have room, however many turns a column has. */
export function turnNumbers(first: number, last: number, pxPerTurn: number): number[] {
  const every = ROUND.find((step) => step * pxPerTurn >= APART) ?? last;
  const numbers = last - first < every ? [first, last] : [];
  for (let seq = Math.ceil(first / every) * every; seq <= last && numbers.length < 100; seq += every) numbers.push(seq);
  return [...new Set(numbers)];
}

function TurnNumbers({ ranges, scale }: { ranges: TimelineRange[]; scale: Scale }) {
  const perTurn = scale.step / scale.each;
  return (
    <>
      {turnNumbers(scale.first, ranges.at(-1)?.last_seq ?? 0, perTurn).map((seq) => (
        <text
          key={seq}
          class="turn-number"
          x={Math.min(LEFT + (seq - scale.first + 0.5) * perTurn, scale.width - NUMBER_HALF_WIDTH)}
          y={TOP + HEIGHT + 16}
        >
          {tokens(seq)}
        </text>
      ))}
    </>
  );
}

/** A row for each kind, its letter before it; a mark has the number of its turns where it stands for several. */
function Marks({ ranges, scale }: { ranges: TimelineRange[]; scale: Scale }) {
  const several = ranges.some((range) => range.last_seq > range.first_seq) || scale.step < 12;
  const together = several ? Math.ceil(30 / scale.step) : 1;
  return (
    <>
      {kindsIn(ranges).map((kind, row) => {
        const y = TOP + HEIGHT + AXIS + row * MARK_ROW + 9;
        return (
          <g key={kind} class={`mark ${kind}`}>
            {several && <MarkBadge x={LEFT - 14} y={y} text={MARKS[kind].letter} width={14} />}
            {Array.from({ length: Math.ceil(ranges.length / together) }, (_, group) => {
              const own = ranges.slice(group * together, (group + 1) * together);
              const count = own.reduce((sum, range) => sum + range.events[kind], 0);
              if (count === 0) return null;
              const x = (scale.x(group * together) + scale.x(group * together + own.length)) / 2;
              const text = several ? shortTokens(count) : MARKS[kind].letter;
              const width = several ? Math.min(own.length * scale.step - 2, 28) : Math.min(14, scale.step);
              return <MarkBadge key={group} x={x} y={y} text={width >= 7 * text.length ? text : ""} width={width} />;
            })}
          </g>
        );
      })}
    </>
  );
}

function MarkBadge({ x, y, text, width }: { x: number; y: number; text: string; width: number }) {
  return (
    <>
      <rect x={x - width / 2} y={y - 7} width={width} height={14} rx={7} />
      <text x={x} y={y + 3.6}>
        {text}
      </text>
    </>
  );
}

function isIn(range: TimelineRange, seq: number | null): boolean {
  return seq !== null && range.first_seq <= seq && seq <= range.last_seq;
}

function labelOf(range: TimelineRange): string {
  const { first_seq: first, last_seq: last, peak } = range;
  const size = peak.window
    ? `${tokens(peak.window.estimated_input_tokens_after_prune)} of ${tokens(peak.window.input_budget)} tokens`
    : "no prompt";
  const what =
    first === last
      ? [`Turn ${first}`, stateWord(peak.status), size]
      : [`Turns ${first} to ${last}`, `${plural(last - first + 1, "turn")}, the largest ${size}`];
  return [...what, ...happenedIn(range)].join(", ");
}

function rightOf(width: number): number {
  return width < NARROW ? RIGHT_WHERE_NARROW : RIGHT;
}

function scaleOf(ranges: TimelineRange[], zoom: Zoom, width: number): Scale {
  const windows = ranges.flatMap(({ peak }) => (peak.window ? [peak.window] : []));
  const budget = Math.max(1, ...windows.map((window) => window.input_budget));
  const used = Math.max(1, ...windows.map((window) => window.estimated_input_tokens_after_prune));
  const top = zoom === "used" ? used * 1.1 : Math.min(Math.max(used, budget * 1.06), budget * 1.3);
  const right = rightOf(width);
  const step = Math.min(WIDEST, Math.max(0, width - LEFT - right) / Math.max(1, ranges.length));
  const [head] = ranges;
  return {
    top,
    step,
    width,
    right,
    first: head?.first_seq ?? 1,
    each: head ? head.last_seq - head.first_seq + 1 : 1,
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

export function useWidth(frame: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    // Without a width it is not shown, for a moment: what is chosen in it would be lost with it.
    const observer = new ResizeObserver(([entry]) =>
      setWidth((before) => Math.floor(entry?.contentRect.width ?? 0) || before),
    );
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, [frame]);
  return width;
}
