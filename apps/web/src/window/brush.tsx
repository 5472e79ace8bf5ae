// The whole session as a strip; what is selected of it is what the plot above shows.
import { useRef } from "preact/hooks";
import { tokens } from "../format";
import type { TimelineRange } from "../types";
import { TurnNumber } from "../ui/turn-number";
import { happenedIn, MARK_KINDS } from "./marks";
import { NUMBER_HALF_WIDTH, turnNumbers } from "./plot";

const STRIP_HEIGHT = 46;
const HEIGHT = 62;
const MARKS_TOP = 38;
const EDGE_PX = 8;
const FEWEST = 5;

export interface Selection {
  first: number;
  last: number;
}

interface Props {
  ranges: TimelineRange[];
  total: number;
  width: number;
  selection: Selection;
  onSelect: (selection: Selection) => void;
}

type Drag = { kind: "new"; from: number } | { kind: "move"; from: number; was: Selection } | { kind: "first" | "last" };

/** Drag to select, drag the selection to move it, its edges to widen it. The fields below do the same by keyboard. */
export function Brush({ ranges, total, width, selection, onSelect }: Props) {
  const strip = useRef<SVGSVGElement>(null);
  const drag = useRef<Drag | null>(null);
  const x = (seq: number) => ((seq - 1) / total) * width;
  const largest = Math.max(1, ...ranges.map(({ peak }) => peak.window?.estimated_input_tokens_after_prune ?? 0));
  const budget = Math.max(1, ...ranges.map(({ peak }) => peak.window?.input_budget ?? 0));
  const top = Math.min(Math.max(largest, budget), budget * 1.3);
  const numbers = turnNumbers(1, total, width / total);
  const middle = (seq: number) => Math.max(NUMBER_HALF_WIDTH, Math.min(x(seq + 0.5), width - NUMBER_HALF_WIDTH));

  function seqAt(event: PointerEvent): number {
    const left = strip.current?.getBoundingClientRect().left ?? 0;
    return Math.max(1, Math.min(total, Math.ceil(((event.clientX - left) / width) * total)));
  }

  function begin(event: PointerEvent) {
    const seq = seqAt(event);
    const at = event.clientX - (strip.current?.getBoundingClientRect().left ?? 0);
    strip.current?.setPointerCapture(event.pointerId);
    if (Math.abs(at - x(selection.first)) < EDGE_PX) drag.current = { kind: "first" };
    else if (Math.abs(at - x(selection.last + 1)) < EDGE_PX) drag.current = { kind: "last" };
    else if (selection.first <= seq && seq <= selection.last && selection.last - selection.first + 1 < total) {
      drag.current = { kind: "move", from: seq, was: selection };
    } else drag.current = { kind: "new", from: seq };
  }

  function go(event: PointerEvent) {
    const now = drag.current;
    if (now) onSelect(within(dragged(now, seqAt(event), selection), total));
  }

  return (
    <svg
      ref={strip}
      class="brush"
      width={width}
      height={HEIGHT}
      aria-hidden="true"
      onPointerDown={begin}
      onPointerMove={go}
      onPointerUp={() => {
        drag.current = null;
      }}
    >
      <rect class="strip" width={width} height={STRIP_HEIGHT} rx="4" />
      {ranges.map((range) => {
        const size = range.peak.window?.estimated_input_tokens_after_prune ?? 0;
        const tall = Math.min(1, size / top) * (MARKS_TOP - 4);
        const wide = Math.max(0.5, x(range.last_seq + 1) - x(range.first_seq) - 0.3);
        return (
          <g key={range.first_seq}>
            <rect class="load" x={x(range.first_seq)} y={MARKS_TOP - tall} width={wide} height={tall} />
            {WORST.filter((kind) => range.events[kind] > 0).map((kind) => (
              <rect
                key={kind}
                class={`tick mark ${kind}`}
                x={x(range.first_seq)}
                y={MARKS_TOP + 2}
                width={Math.max(2, wide)}
                height="5"
              >
                <title>{`Turns ${range.first_seq} to ${range.last_seq}, ${happenedIn(range).join(", ")}`}</title>
              </rect>
            ))}
          </g>
        );
      })}
      <rect
        class="chosen"
        x={x(selection.first)}
        width={Math.max(3, x(selection.last + 1) - x(selection.first))}
        height={STRIP_HEIGHT}
      />
      {numbers
        .filter((seq, at) => at === numbers.length - 1 || middle(seq) < middle(total) - 2 * NUMBER_HALF_WIDTH)
        .map((seq) => (
          <text key={seq} x={middle(seq)} y={HEIGHT - 4}>
            {tokens(seq)}
          </text>
        ))}
    </svg>
  );
}

/** Recalls are in nearly every turn, and would hide the rest. */
const WORST = MARK_KINDS.filter((kind) => kind !== "recall");

function dragged(drag: Drag, seq: number, now: Selection): Selection {
  switch (drag.kind) {
    case "new":
      return { first: Math.min(drag.from, seq), last: Math.max(drag.from, seq) };
    case "move":
      return { first: drag.was.first + seq - drag.from, last: drag.was.last + seq - drag.from };
    case "first":
      return { first: Math.min(seq, now.last - FEWEST + 1), last: now.last };
    case "last":
      return { first: now.first, last: Math.max(seq, now.first + FEWEST - 1) };
  }
}

/** The selection inside the session, as wide as it was where there is room, and never too narrow to see. */
export function within({ first, last }: Selection, total: number): Selection {
  const wide = Math.min(total, Math.max(FEWEST, last - first + 1));
  const from = Math.max(1, Math.min(first, total - wide + 1));
  return { first: from, last: from + wide - 1 };
}

interface FieldsProps {
  selection: Selection;
  total: number;
  onSelect: (selection: Selection) => void;
}

/** The selection in figures, and steps through it. */
export function BrushFields({ selection, total, onSelect }: FieldsProps) {
  const { first, last } = selection;
  const wide = last - first + 1;
  const middle = (first + last) / 2;
  const zoomed = (factor: number) => {
    const half = Math.max(FEWEST, wide * factor) / 2;
    onSelect(within({ first: Math.round(middle - half + 0.5), last: Math.round(middle + half - 0.5) }, total));
  };
  return (
    <div class="brush-fields">
      <TurnNumber
        label="Turns"
        value={first}
        least={1}
        most={last}
        onCommit={(typed) => onSelect(within({ first: typed || 1, last }, total))}
      />
      <TurnNumber
        label="to"
        value={last}
        least={first}
        most={total}
        onCommit={(typed) => onSelect(within({ first, last: Math.min(total, typed || total) }, total))}
      />
      <span class="quiet">of {tokens(total)}</span>
      <div class="steps">
        <button
          type="button"
          disabled={first === 1}
          onClick={() => onSelect(within({ first: first - wide, last: last - wide }, total))}
        >
          ← Earlier
        </button>
        <button
          type="button"
          disabled={last === total}
          onClick={() => onSelect(within({ first: first + wide, last: last + wide }, total))}
        >
          Later →
        </button>
        <button type="button" aria-label="Zoom in" disabled={wide <= FEWEST} onClick={() => zoomed(0.5)}>
          +
        </button>
        <button type="button" aria-label="Zoom out" disabled={wide === total} onClick={() => zoomed(2)}>
          −
        </button>
        <button type="button" disabled={wide === total} onClick={() => onSelect({ first: 1, last: total })}>
          All
        </button>
      </div>
    </div>
  );
}
