import { shortTokens } from "../format";
import type { SimulatedTurn } from "../types";

interface Drawn {
  name: string;
  per_turn: SimulatedTurn[];
}

const WIDTH = 900;
const HEIGHT = 200;
const LEFT = 50;
const FLOOR = 176;
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 4"];

/** Tokens of every turn's prompts, a line a policy; lines differ in dash and shade. The table below has the sums. */
export function LaneChart({ lanes }: { lanes: Drawn[] }) {
  const turns = Math.max(1, ...lanes.map((lane) => lane.per_turn.length));
  const top = Math.max(1, ...lanes.flatMap((lane) => lane.per_turn.map((turn) => turn.wire_tokens))) * 1.05;
  const x = (seq: number) => LEFT + ((seq - 0.5) / turns) * (WIDTH - LEFT - 8);
  const y = (value: number) => FLOOR - (value / top) * (FLOOR - 8);
  return (
    <>
      <svg
        class="lane-chart"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label="Prompt tokens of every turn by policy"
      >
        {[0, top / 2, top].map((tick) => (
          <g key={tick}>
            <line class="grid" x1={LEFT} x2={WIDTH} y1={y(tick)} y2={y(tick)} />
            <text x={LEFT - 6} y={y(tick) + 4}>
              {shortTokens(Math.round(tick))}
            </text>
          </g>
        ))}
        <text class="axis" x={x(1)} y={HEIGHT - 6}>
          turn 1
        </text>
        <text x={WIDTH - 8} y={HEIGHT - 6}>
          turn {turns}
        </text>
        {lanes.map((lane, at) => (
          <polyline
            key={lane.name}
            class={`lane lane-${at}`}
            stroke-dasharray={DASHES[at % DASHES.length]}
            points={lane.per_turn
              .filter((turn) => turn.calls > 0)
              .map((turn) => `${x(turn.seq).toFixed(1)},${y(turn.wire_tokens).toFixed(1)}`)
              .join(" ")}
          />
        ))}
      </svg>
      <ul class="legend">
        {lanes.map((lane, at) => (
          <li key={lane.name}>
            <svg class="lane-key" viewBox="0 0 28 8" aria-hidden="true">
              <line
                class={`lane lane-${at}`}
                stroke-dasharray={DASHES[at % DASHES.length]}
                x1="0"
                x2="28"
                y1="4"
                y2="4"
              />
            </svg>
            {lane.name}
          </li>
        ))}
      </ul>
    </>
  );
}
