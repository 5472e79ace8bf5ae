import type { ComponentChildren } from "preact";

/** A table that may be wider than the page: it scrolls by itself, by keyboard too. */
export function Wide({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <section class="scroll-x" tabIndex={0} aria-label={label}>
      {children}
    </section>
  );
}
