import { useEffect, useRef } from "preact/hooks";

/** Where the keyboard goes on after this changed, if what had its focus went with the change. */
export function useKeptFocus<T extends HTMLElement>(change: unknown) {
  const own = useRef<T>(null);
  const before = useRef(change);
  useEffect(() => {
    if (before.current === change) return;
    before.current = change;
    if (document.activeElement === document.body) own.current?.focus();
  }, [change]);
  return own;
}

/** A button that cannot be pressed while it works loses the focus: it has it again once it can, if nothing else does. */
export function keepFocusOfButtons(): void {
  let lost: HTMLButtonElement | null = null;
  document.addEventListener("focusout", ({ target }) => {
    lost = target instanceof HTMLButtonElement && target.disabled ? target : null;
  });
  new MutationObserver(() => {
    if (lost && !lost.disabled && document.activeElement === document.body) lost.focus({ preventScroll: true });
  }).observe(document.body, { subtree: true, attributeFilter: ["disabled"] });
}
