import { REGIONS, type Regions } from "../types";

interface Props {
  regions: Regions;
  /** Tokens that the whole width stands for, at least. */
  atLeast: number;
  /** Tokens at which a line is drawn. */
  lines?: readonly number[];
}

/** A prompt's regions as one bar. The figures stand beside it, so it is a picture only. */
export function WindowBar({ regions, atLeast, lines = [] }: Props) {
  const sum = REGIONS.reduce((before, region) => before + regions[region], 0);
  const whole = Math.max(atLeast, sum, 1);
  const x = (value: number) => (value / whole) * 100;
  let left = 0;
  return (
    <svg class="window-bar" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="14" />
      {REGIONS.map((region) => {
        const from = left;
        left += regions[region];
        return <rect key={region} class={`bar ${region}`} x={x(from)} width={x(regions[region])} height="14" />;
      })}
      {lines.map((value) => (
        <line key={value} x1={x(value)} x2={x(value)} y2="14" vector-effect="non-scaling-stroke" />
      ))}
    </svg>
  );
}
