/** How much of something is in use. The figures stand beside it, so it is a picture only. */
export function Gauge({ part, of, plain = false }: { part: number; of: number; plain?: boolean }) {
  const share = of > 0 ? Math.min(1, Math.max(0, part / of)) : 1;
  const level = plain ? "low" : share >= 0.9 ? "high" : share >= 0.7 ? "middle" : "low";
  return (
    <svg class={`gauge ${level}`} viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="6" rx="2" />
      <rect class="fill" width={share * 100} height="6" rx="2" />
    </svg>
  );
}
