import { useRef } from "preact/hooks";
import { plural, shortTokens } from "../format";
import type { SimulatedTurn } from "../types";
import { useWidth } from "../window/plot";

interface Drawn {
  name: string;
  per_turn: SimulatedTurn[];
}

export const MOST_LANES = 7;
const HEIGHT = 210;
const LEFT = 52;
const RIGHT = 8;
const TOP = 10;
const FLOOR = 180;
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 4", "12 4", "1 4"];

/** Tokens of every turn's prompts, a line a policy; lines differ in dash and shade. The table below has the sums. */
export function LaneChart({ lanes }: { lanes: Drawn[] }) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const sent = lanes.map((lane) => lane.per_turn.filter((turn) => turn.calls > 0));
  const turns = Math.max(1, ...lanes.map((lane) => lane.per_turn.length));
  const top = niceAbove(Math.max(1, ...sent.flat().map((turn) => turn.wire_tokens)));
  const x = (seq: number) => LEFT + ((seq - 0.5) / turns) * (width - LEFT - RIGHT);
  const y = (value: number) => FLOOR - (value / top) * (FLOOR - TOP);
  return (
    <div class="lane-frame">
      <div ref={frame}>
        {width > 0 && (
          <svg class="lane-chart" width={width} height={HEIGHT} role="img" aria-label={labelOf(lanes, turns)}>
            {[0, top / 2, top].map((tick) => (
              <g key={tick}>
                <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} />
                <text x={LEFT - 8} y={y(tick) + 4}>
                  {shortTokens(Math.round(tick))}
                </text>
              </g>
            ))}
            <text class="axis" x={LEFT} y={HEIGHT - 10}>
              turn 1
            </text>
            <text x={width - RIGHT} y={HEIGHT - 10}>
              turn {turns}
            </text>
            {sent.map((lane, at) => (
              <g key={lanes[at]?.name} class={`lane-${at}`}>
                <polyline
                  class="lane"
                  stroke-dasharray={DASHES[at]}
                  points={lane.map((turn) => `${x(turn.seq).toFixed(1)},${y(turn.wire_tokens).toFixed(1)}`).join(" ")}
                />
                {lane.map(
                  (turn) =>
                    (turn.summary || turn.later_summary) && (
                      <circle key={turn.seq} class="lane-dot" cx={x(turn.seq)} cy={y(turn.wire_tokens)} r="3" />
                    ),
                )}
              </g>
            ))}
          </svg>
        )}
      </div>
      <ul class="legend">
        {lanes.map((lane, at) => (
          <li key={lane.name}>
            <svg class={`lane-key lane-${at}`} viewBox="0 0 28 8" aria-hidden="true">
              <line class="lane" stroke-dasharray={DASHES[at]} x1="0" x2="28" y1="4" y2="4" />
            </svg>
            {lane.name}
          </li>
        ))}
        <li class="quiet">
          <svg class="lane-key" viewBox="0 0 28 8" aria-hidden="true">
            <circle class="lane-dot" cx="14" cy="4" r="3" />
          </svg>
          a summary
        </li>
      </ul>
    </div>
  );
}

function labelOf(lanes: Drawn[], turns: number): string {
  return `Prompt tokens of ${plural(turns, "turn")}: ${lanes.map((lane) => lane.name).join("; ")}. The table below has the sums.`;
}

/** The next round figure, so that its half is nearly round too. */
function niceAbove(value: number): number {
  const magnitude = 10 ** Math.floor(Math.log10(value));
  return ([1, 1.2, 1.6, 2, 3, 4, 5, 6, 8].find((factor) => factor * magnitude >= value) ?? 10) * magnitude;
}
